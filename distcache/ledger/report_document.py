"""What a report says: the contract of its JSON."""

from __future__ import annotations

import msgspec

VISITS = 17  # numbers of visits that are told apart: never, in part, once, ..., 15 times or more
LENGTHS = 33  # lengths that are told apart: 0, then from a power of two up to the next


class CorpusReport(msgspec.Struct, frozen=True, kw_only=True):
    """What training sees of a corpus; None for what it does not have."""

    corpus: str  # path of the corpus, as the configuration has it
    # share that its weight asks for, and the share of the samples that it gives; the first is None
    # without weights
    weight: float | None = None
    share: float
    samples: int  # samples that it gives
    samples_left: int  # further samples that its section has
    documents: int  # documents of the split
    tokens: int  # tokens of them
    trained_tokens: int  # tokens that are inputs, over all visits
    passes: float  # tokens that are trained on, of those that there are
    # the same of the document that is seen most, in the mean over its tokens
    most_passes: float | None = None
    tokens_never: int  # tokens that are never inputs
    # Documents by how often they are seen: never, in part, once, twice and so on; the last number
    # is of all that are seen as often as that, or more often
    visits: tuple[int, ...]
    # documents by their length in tokens: of 0, of 1, of 2 and 3, of 4 to 7 and so on
    lengths: tuple[int, ...]
    # sequences in the order of the section, trained or not: in one sample, in two, and in more
    whole: int
    cut_once: int
    cut_more: int
    # share of its tokens that are in a later sample than the first of their document
    continued: float | None = None
    # correlations: of the place of documents in the corpus with their length; of samples in
    # training with the place of their documents
    order_of_lengths: float | None = None
    order_of_training: float | None = None
    # distance in the corpus of the documents of samples in a row, where 1 is that at random
    neighbours: float | None = None
    # mean place of documents that are never seen, where 0 is the first, and 1 the last
    place_of_never: float | None = None


class WindowsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What training sees, stretch by stretch."""

    samples: int  # samples of a window; the last one may have fewer
    count: int  # number of windows
    shares: tuple[tuple[float, ...], ...]  # share of each corpus, for each window
    # of each window: documents of a sample, the sum of their squares as a share of the square of
    # its length, the greatest one of a sample, and the share of its tokens that are padding
    documents: tuple[float, ...]
    squares: tuple[float, ...]
    most_squares: tuple[float, ...]
    padding: tuple[float, ...]
    # greatest difference of a corpus's share in a window from its share of all, and where
    difference: float
    difference_corpus: int
    difference_window: int


class StepsReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much work the steps of a batch size are."""

    batch: int  # samples of a step
    count: int  # number of steps
    median_squares: float  # sum of the squares of documents of a step, per sample, as of windows
    most_squares: float  # the greatest
    most_step: int  # number of that step, from 1


class WaitsReport(msgspec.Struct, frozen=True, kw_only=True):
    """How long ranks wait for the heaviest, as shares of the time of computing of a step."""

    deal: str  # samples of a step, ranks, and samples of a micro batch
    model: str  # size of the model, as it was given
    balance: int  # tokens of a document for which attention costs as much as everything else
    steps: int  # steps that were sampled
    # where ranks meet at the end of a step: with the samples in order, and dealt
    in_order: float
    dealt: float
    # the same where ranks meet in each micro batch, as with FSDP or experts over data ranks
    in_order_by_micro_batch: float
    dealt_by_micro_batch: float


class OrderReport(msgspec.Struct, frozen=True, kw_only=True):
    """How samples of corpora follow one another."""

    same: float  # share of samples of the same corpus as the one before
    same_at_random: float  # that share if corpora were drawn at random
    longest: int  # samples of the longest run of one corpus
    longest_corpus: int  # index of that corpus
    longest_position: int  # position at which it begins


class RepeatsReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far apart the visits of documents are, of some that are drawn by a hash."""

    corpus: int  # index of the corpus
    documents: int  # documents that were followed
    repeats: int  # further visits of them
    # samples between two visits: the least, the quartiles and the greatest
    least: int
    quartiles: tuple[int, int, int]
    most: int
    pass_samples: int  # samples of training in which the corpus is gone through once
    # visits by their distance: twenty classes up to twice `pass_samples`, and those beyond
    histogram: tuple[int, ...]


class ReportWarning(msgspec.Struct, frozen=True):
    """Something that may be a fault of the configuration."""

    kind: str  # short name, which does not change
    message: str  # what is found, and what to change
    corpus: int | None = None  # index of the corpus


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What training sees of a split, summed up."""

    format: int = 1
    cache: str  # path of the cache
    key: str  # key of the cache
    split: str
    order: str  # order of its sections
    sequence_length: int  # tokens of a sample
    samples: int  # samples that are reported on
    of_samples: int  # samples of the split
    phases: int  # phases of the blend
    corpora: tuple[CorpusReport, ...]
    windows: WindowsReport
    steps: StepsReport | None = None
    waits: WaitsReport | None = None
    succession: OrderReport
    repeats: tuple[RepeatsReport, ...]
    padding: float | None = None  # share of all tokens that are padding
    warnings: tuple[ReportWarning, ...] = ()
