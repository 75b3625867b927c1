"""A corpus may have a loss mask, a byte for each token; corpora without one have a loss everywhere.

The masks here are functions of the token, so that every reader, order and copy has one truth: the
loss of predicting an even token is none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.cache import open_cache
from distcache.corpus.idx import bin_path, open_idx
from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import LossReceipt, find_receipt
from distcache.edit.copy_corpora import copy_corpora
from distcache.edit.mask import write_mask
from distcache.errors import ConfigError, CorpusError, KeyMismatch, NotReady
from distcache.ledger.consumed import Consumed
from distcache.ledger.rest import RestOptions, Trained, write_rest
from distcache.ledger.trace import trace
from distcache.megatron.export import export
from distcache.plan.losses import loss_shares, silent_warnings
from tests.orders.orders import ORDERS, fields_of, write_numbered
from tests.support import here
from tests.support.corpora import write_corpus
from tests.support.threads import run_ranks

MASKED = ("mixed", "long")  # of short, mixed and long


def write_masks(corpora: Path) -> None:
    """Write the masks of corpora of i4: 1 for odd tokens."""
    for name in MASKED:
        tokens = np.fromfile(bin_path(str(corpora / name)), "i4")
        Path(loss_path(str(corpora / name))).write_bytes((tokens % 2).astype("u1").tobytes())


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """A directory with corpora, two of which have masks."""
    write_numbered(tmp_path / "corpora")
    write_masks(tmp_path / "corpora")
    return tmp_path / "corpora"


def build(corpora: Path, case: str, out: Path, **more: Any) -> Path:
    """Build a cache of an order."""
    fields = {k: v for k, v in (fields_of(corpora, case) | more).items() if v is not None}
    return Path(here.build(fields, out).path)


@pytest.mark.parametrize("case", ORDERS)
def test_the_loss_is_that_of_the_predicted_token(case: str, masked: Path, tmp_path: Path) -> None:
    """In every order and split, beside corpora without a mask; nothing else changes."""
    cache = distcache.open(build(masked, case, tmp_path / "with"))
    write_numbered(tmp_path / "plain")
    plain = distcache.open(build(tmp_path / "plain", case, tmp_path / "without"))
    assert cache.key != plain.key
    for split in ("train", "valid"):
        ours, bare = cache.numpy_dataset(split), plain.numpy_dataset(split)
        every = range(len(bare))
        batch, before = ours.batch(every), bare.batch(every)
        has_mask = (before["dataset_id"] > 0)[:, None]
        wanted = before["loss_mask"] * np.where(has_mask, before["labels"] % 2, 1)
        assert np.array_equal(batch.pop("loss_mask"), wanted)
        del before["loss_mask"]
        assert {n: v.tobytes() for n, v in batch.items()} == {
            n: v.tobytes() for n, v in before.items()
        }
        assert not ours[None]["loss_mask"].any()


def test_masks_change_no_array(masked: Path, tmp_path: Path) -> None:
    """But the key: caches of other masks are others, and their states are refused."""
    first = open_cache(build(masked, "passes", tmp_path / "a"))
    path = Path(loss_path(str(masked / "long")))
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    second = open_cache(build(masked, "passes", tmp_path / "b"))
    assert first.key != second.key
    assert first.identity["loss"][0] is None
    assert first.table("sections")["key"].tolist() == second.table("sections")["key"].tolist()


def test_a_mask_that_is_gone_or_cut_short(masked: Path, tmp_path: Path) -> None:
    """Is an error of the first sample: without it there would be a loss everywhere."""
    path = build(masked, "passes", tmp_path / "a")
    mask = Path(loss_path(str(masked / "long")))
    content = mask.read_bytes()
    for spoil, error in (
        (lambda: mask.write_bytes(content[:-1]), CorpusError),
        (mask.unlink, NotReady),
    ):
        spoil()
        with pytest.raises(error, match=r"long\.loss"):
            distcache.open(path).numpy_dataset("train").batch(range(200))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda size: b"\1" * (size - 1), "expected one for each token"),
        (lambda size: b"\1" * size + b"\0", "expected one for each token"),
        (lambda size: b"\0" * size, "has a loss, so that nothing"),
        (lambda size: b"\1" * (size - 3) + b"\2\1\1", "is 2, expected 0 or 1"),
    ],
)
def test_wrong_masks_are_faults(content: Any, message: str, masked: Path) -> None:
    """With the file, and the byte."""
    mask = Path(loss_path(str(masked / "long")))
    mask.write_bytes(content(mask.stat().st_size))
    (fault,) = here.faults([masked / "long"])
    assert fault.path == str(mask)
    assert message in fault.message


def test_facts_count_what_is_learned(masked: Path) -> None:
    """Tokens with a loss, and documents that have none."""
    mask = Path(loss_path(str(masked / "mixed")))
    values = np.frombuffer(mask.read_bytes(), "u1").copy()
    idx = here.sound(masked / "mixed")
    assert idx.loss is not None
    assert idx.loss.tokens == values.sum()
    lengths = open_idx(str(masked / "mixed")).lengths
    first = int(np.flatnonzero(lengths)[0])
    values[: int(lengths[: first + 1].sum())] = 0
    mask.write_bytes(values.tobytes())
    found = here.sound(masked / "mixed").loss
    assert found is not None
    assert (found.tokens, found.silent) == (values.sum(), 1)


def test_megatron_cannot_read_them(masked: Path, tmp_path: Path) -> None:
    """An export would lose them."""
    path = build(masked, "megatron", tmp_path / "a", tokenizer={"class": "X"})
    with pytest.raises(ConfigError, match=r"distcache\.megatron\.provider"):
        export(open_cache(path), tmp_path / "out")


def test_a_mask_goes_with_its_tokens(masked: Path, tmp_path: Path) -> None:
    """Into views of views, merges with corpora that have none, copies, and the rest of a run."""
    here.select(masked / "mixed", tmp_path / "view", min_length=2)
    here.select(tmp_path / "view", tmp_path / "again", max_length=30)
    here.materialize(tmp_path / "again", tmp_path / "own")
    here.materialize(masked / "long", tmp_path / "filled", multiple_of=8, eod=3)
    here.merge([masked / "short", tmp_path / "again", masked / "long"], tmp_path / "merged")
    names = ["view", "again", "own", "merged"]
    for name in names:
        prefix = str(tmp_path / name)
        facts = here.sound(prefix)
        idx, tokens = open_idx(prefix), np.fromfile(bin_path(prefix), "i4")
        mask = np.fromfile(loss_path(prefix), "u1")
        assert facts.loss is not None
        first = 200 if name == "merged" else 0  # sequences of the corpus without a mask
        for number, (offset, length) in enumerate(zip(idx.offsets, idx.lengths, strict=True)):
            own = slice(int(offset) // 4, int(offset) // 4 + int(length))
            wanted = tokens[own] % 2 if number >= first else np.ones(int(length))
            assert mask[own].tolist() == wanted.tolist()
    filled = np.fromfile(bin_path(str(tmp_path / "filled")), "i4")
    mask = np.fromfile(loss_path(str(tmp_path / "filled")), "u1")
    assert mask.sum() == (np.fromfile(bin_path(str(masked / "long")), "i4") % 2).sum()
    assert not mask[filled % 2 == 0].any()
    cache = build(masked, "passes", tmp_path / "caches")
    rest = write_rest(
        [Trained(trace(cache), Consumed.of_number(100))], str(tmp_path / "rest"), RestOptions()
    )
    for made in rest.corpora:
        assert made.view is not None
        assert (here.sound(made.view).loss is not None) == made.corpus.endswith(MASKED)


def test_a_copy_for_any_ranks(masked: Path, tmp_path: Path) -> None:
    """Has the same bytes."""
    made = []
    prefixes = [str(masked / name) for name in ("short", "long", "mixed")]
    for ranks in (1, 3):
        out = str(tmp_path / f"copy-{ranks}")
        assert run_ranks(ranks, lambda c, out=out: bool(copy_corpora(c, prefixes, out)))[1] == []
        made.append(Path(loss_path(out)).read_bytes())
    assert made[0] == made[1]


def test_a_stale_mask_is_not_adopted(masked: Path, tmp_path: Path) -> None:
    """A file with the mask's name is in the way, as any other."""
    (tmp_path / "copy.loss").write_bytes(b"\1")
    with pytest.raises(KeyMismatch, match=r"copy\.loss"):
        here.merge([masked / "short"], tmp_path / "copy")


def test_a_corpus_is_given_its_mask(tmp_path: Path) -> None:
    """By bytes, or by labels; a receipt names it, and another mask is a fault."""
    write_numbered(tmp_path)
    here.merge([tmp_path / "long"], tmp_path / "c")
    tokens = np.fromfile(bin_path(str(tmp_path / "c")), "i4")
    values = tmp_path / "mask.bin"
    values.write_bytes((tokens % 2).astype("u1").tobytes())
    made = write_mask(str(tmp_path / "c"), values=values)
    assert (made.tokens, made.tokens_with_loss) == (len(tokens), (tokens % 2).sum())
    facts = here.sound(tmp_path / "c")
    receipt = find_receipt(str(tmp_path / "c"))
    assert receipt is not None
    assert facts.loss is not None
    assert receipt.loss == LossReceipt(facts.loss.digest, facts.loss.tokens)
    assert receipt.differences(facts) == []
    with pytest.raises(ConfigError, match="exists; remove it first"):
        write_mask(str(tmp_path / "c"), values=values)
    mask = Path(loss_path(str(tmp_path / "c")))
    by_bytes = mask.read_bytes()
    mask.unlink()
    assert receipt.differences(here.sound(tmp_path / "c"))
    labels = np.where(tokens % 2, tokens, -100).astype("i4")
    lengths = open_idx(str(tmp_path / "c")).lengths
    write_corpus(str(tmp_path / "labels"), np.split(labels, np.cumsum(lengths)[:-1]), "i4")
    write_mask(str(tmp_path / "c"), labels=str(tmp_path / "labels"))
    assert mask.read_bytes() == by_bytes


def test_masks_that_are_not_those_of_a_corpus(tmp_path: Path) -> None:
    """Nothing is written."""
    write_numbered(tmp_path)
    tokens = np.fromfile(bin_path(str(tmp_path / "long")), "i4")
    wrong = tmp_path / "mask.bin"
    for content, message in (
        (b"\1" * (len(tokens) - 1), "expected one for each"),
        (b"\0" * len(tokens), "has a loss, so that nothing"),
        (b"\5" * len(tokens), "expected 0 or 1"),
    ):
        wrong.write_bytes(content)
        with pytest.raises(CorpusError, match=message):
            write_mask(str(tmp_path / "long"), values=wrong)
    with pytest.raises(CorpusError, match="has other sequences"):
        write_mask(str(tmp_path / "long"), labels=str(tmp_path / "mixed"))
    labels = tokens + (np.arange(len(tokens)) == 7)
    lengths = open_idx(str(tmp_path / "long")).lengths
    write_corpus(str(tmp_path / "labels"), np.split(labels, np.cumsum(lengths)[:-1]), "i4")
    with pytest.raises(CorpusError, match=r"label 7 is 8, and the token of .* is 7"):
        write_mask(str(tmp_path / "long"), labels=str(tmp_path / "labels"))
    here.select(tmp_path / "long", tmp_path / "view", min_length=2)
    with pytest.raises(ConfigError, match="is a view"):
        write_mask(str(tmp_path / "view"), values=wrong)
    assert not list(tmp_path.glob("*.loss"))


def test_a_plan_says_what_is_learned(masked: Path) -> None:
    """Weights count samples, and most tokens of a corpus may have no loss."""
    shares = {
        Path(one.corpus).name: one for one in loss_shares(here.plan(fields_of(masked, "passes")))
    }
    assert shares["short"].tokens_with_loss == 1
    assert shares["long"].tokens_with_loss == pytest.approx(0.5, abs=0.01)
    assert shares["long"].samples == pytest.approx(0.5)  # weights 1, 2 and 3
    assert shares["long"].loss == pytest.approx(1.5 / 3.5, abs=0.01)
    assert sum(one.loss for one in shares.values()) == pytest.approx(1)
    mask = Path(loss_path(str(masked / "long")))
    mask.write_bytes(b"\1" * 20 + bytes(mask.stat().st_size - 20))
    (warning,) = silent_warnings(here.plan(fields_of(masked, "passes")))
    assert "sequences have no token with a loss" in warning


def test_a_localized_copy_reads_the_shared_mask(masked: Path, tmp_path: Path) -> None:
    """As it does a `.bin`; without one, localizing says so."""
    path = build(masked, "passes", tmp_path / "caches")
    for tokens in ("link", "copy"):
        store = tmp_path / tokens
        here.localize(path, store, tokens=tokens)
        cache = distcache.open(path, local=store)
        assert cache.is_local
        shared = distcache.open(path)
        every = range(0, 250, 7)
        found, wanted = (
            c.numpy_dataset("train").batch(every)["loss_mask"] for c in (cache, shared)
        )
        assert np.array_equal(found, wanted)
    Path(loss_path(str(masked / "long"))).unlink()
    with pytest.raises(NotReady, match=r"long\.loss"):
        here.localize(path, tmp_path / "other")


def test_a_view_that_is_older_than_the_mask_is_a_fault(masked: Path, tmp_path: Path) -> None:
    """It would have a loss everywhere; made again, it has the mask."""
    mask = Path(loss_path(str(masked / "long")))
    content = mask.read_bytes()
    mask.unlink()
    here.select(masked / "long", tmp_path / "view", min_length=3)
    mask.write_bytes(content)
    (fault,) = here.faults([tmp_path / "view"])
    assert "make the view again" in fault.message
    with pytest.raises(KeyMismatch):
        here.select(masked / "long", tmp_path / "view", min_length=3)
    here.select(masked / "long", tmp_path / "new", min_length=3)
    assert here.sound(tmp_path / "new").loss is not None


def test_what_is_left_needs_the_mask_of_training(masked: Path, tmp_path: Path) -> None:
    """Views without it would have a loss everywhere."""
    cache = build(masked, "passes", tmp_path / "caches")
    Path(loss_path(str(masked / "long"))).unlink()
    trained = [Trained(trace(cache), Consumed.of_number(100))]
    with pytest.raises(ConfigError, match=r"long\.loss: is missing, or another"):
        write_rest(trained, str(tmp_path / "rest"), RestOptions())


def test_a_corpus_that_is_gone_keeps_its_mask_in_the_key(masked: Path, tmp_path: Path) -> None:
    """A cache that continues another is the same whether files that nothing draws are there."""
    alone = {"split": "1,0,0", "samples": {"train": 250, "valid": 0}}
    first = build(masked, "passes", tmp_path / "first", **alone)
    fields = fields_of(masked, "passes") | {
        "split": "1,0,0",
        "continue": {"cache": str(first), "samples": 100},
        "blend": [str(masked / name) for name in ("short", "mixed", "long")],
        "phases": [{"samples": 60, "weights": [1, 0, 1]}],
        "samples": {"valid": 0, "test": 0},
    }
    with_files = here.plan(fields).key
    for path in masked.glob("mixed.*"):
        path.rename(tmp_path / path.name)
    made = open_cache(here.build(fields, tmp_path / "second").path)
    assert made.key == with_files


def test_long_sequences_are_counted_in_pieces(tmp_path: Path, limit: Callable[..., None]) -> None:
    """Pieces that end within sequences, and blocks of them; in any order of the `.bin`."""
    limit("distcache.corpus.loss", CHUNK_BYTES=7, BLOCK_SEQUENCES=5)
    limit("distcache.edit.padded_source", MASK_BYTES=9)
    write_numbered(tmp_path)
    write_masks(tmp_path)
    for name in MASKED:
        facts = here.sound(tmp_path / name)
        tokens = np.fromfile(bin_path(str(tmp_path / name)), "i4")
        lengths = open_idx(str(tmp_path / name)).lengths
        parts = np.split(tokens % 2, np.cumsum(lengths)[:-1])
        silent = sum(1 for part in parts if len(part) and not part.any())
        assert facts.loss is not None
        assert (facts.loss.tokens, facts.loss.silent) == ((tokens % 2).sum(), silent)
        here.materialize(tmp_path / name, tmp_path / f"{name}-8", multiple_of=8, eod=0)
        mask = np.fromfile(loss_path(str(tmp_path / f"{name}-8")), "u1")
        filled = np.fromfile(bin_path(str(tmp_path / f"{name}-8")), "i4")
        assert mask.tolist() == (filled % 2).tolist()
