"""Made-up corpora, for tests of infrastructure: real files of any size, in seconds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import bin_path, named_type
from distcache.corpus.idx_writer import write_idx
from distcache.errors import ConfigError
from distcache.option import Option
from distcache.ranks.progress import Progress
from distcache.storage.files import atomic_write, may_write
from distcache.storage.threads import map_in_threads
from distcache.storage.watchdog import tick

MAX_DOCUMENT_TOKENS: Final = 2**31 - 1  # tokens of a document
SPREAD: Final = 1.0  # of the sizes of corpora: the standard deviation of their logarithms
PIECE_ITEMS: Final = 1 << 22  # tokens or documents at a time
MAX_DOCUMENTS: Final = 10**13
KINDS: Final = {"constant": 1, "uniform": 2, "lognormal": 2}


def parse_count(text: str) -> int:
    """Parse a number of documents, such as ``2e7``.

    Raises
    ------
    ConfigError
        If it is not a whole number.
    """
    try:
        count = float(text)
        if count != int(count):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--documents {text}: expected a number, such as 2e7") from error
    return int(count)


class Mock(msgspec.Struct, frozen=True, kw_only=True):
    """What to make up."""

    # each document has one sequence
    documents: Annotated[
        int,
        Option(
            "Documents of all corpora together, for example 2e7.", parse=parse_count, shown="1e6"
        ),
    ] = 1_000_000
    lengths: Annotated[
        str, Option("constant:TOKENS, uniform:LEAST:MOST or lognormal:MEAN:SIGMA.")
    ] = "lognormal:600:1.2"
    vocabulary: Annotated[
        int, Option("Size of the vocabulary.", "--vocab-size", least=1, most=2**31 - 1)
    ] = 128_256
    corpora: Annotated[int, Option("Number of corpora.", "--count", least=1, most=1_000_000)] = 1
    seed: Annotated[int, Option("The same seed gives the same bytes.", least=0)] = 1234
    fill: Annotated[
        bool, Option("Write random tokens; by default .bin files are holes.", "--fill")
    ] = False


class MockCorpora(msgspec.Struct, frozen=True):
    """What has been made."""

    prefixes: tuple[str, ...]  # paths of the corpora, without suffix
    # number of documents and of tokens of each corpus
    documents: tuple[int, ...]
    tokens: tuple[int, ...]
    dtype: str  # type of the tokens


def parse_lengths(text: str) -> tuple[str, list[float]]:
    """Return the kind of a distribution and its numbers.

    Raises
    ------
    ConfigError
        If it has another form, or lengths that no document has.
    """
    kind, *words = text.split(":")
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    sound = kind in KINDS and len(numbers) == KINDS[kind] and 1 <= numbers[0] <= MAX_DOCUMENT_TOKENS
    if sound and kind == "uniform":
        sound = numbers[0] <= numbers[1] <= MAX_DOCUMENT_TOKENS
    if sound and kind != "lognormal":
        sound = all(number.is_integer() for number in numbers)
    if sound and kind == "lognormal":
        sound = 0 <= numbers[1] <= 10
    if not sound:
        raise ConfigError(
            f"--lengths {text}: expected constant:TOKENS, uniform:LEAST:MOST or "
            "lognormal:MEAN:SIGMA"
        )
    return kind, numbers


def write_mock(mock: Mock, directory: Path, threads: int, progress: Progress) -> MockCorpora:
    """Write corpora into an empty directory.

    Parameters
    ----------
    mock : Mock
        Description of the corpora to make up.
    directory : Path
        Directory; made if it does not exist.
    threads : int
        Corpora that are written at a time.
    progress : Progress
        Counts documents.

    Raises
    ------
    ConfigError
        If the numbers make no sense, or the directory has something in it.
    NoSpace
        If the disk is full.
    """
    kind, numbers = parse_lengths(mock.lengths)
    if not 1 <= mock.corpora <= mock.documents or mock.vocabulary < 1 or mock.seed < 0:
        raise ConfigError(
            "expected at least one document in each corpus, a vocabulary of at least one token, "
            "and a seed that is not negative"
        )
    if mock.documents > MAX_DOCUMENTS:
        raise ConfigError(f"--documents: more than {MAX_DOCUMENTS:,}")
    with may_write(directory, "choose another --out"):
        directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigError(f"{directory}: has something in it; choose another --out, or remove it")
    weights = np.random.default_rng(mock.seed).lognormal(0, SPREAD, mock.corpora)
    ends = np.cumsum(weights) / weights.sum() * (mock.documents - mock.corpora)
    bounds = np.concatenate([[0], np.rint(ends)]).astype(np.int64)
    sizes = [int(size) + 1 for size in np.diff(bounds)]  # at least one document in each corpus
    dtype = named_type("megatron", mock.vocabulary)
    prefixes = [str(directory / f"corpus-{number:05d}") for number in range(mock.corpora)]
    progress.phase("writing", mock.documents)
    lock = threading.Lock()

    def write(number: int) -> int:
        random = np.random.default_rng([mock.seed, number])
        lengths = _lengths(random, kind, numbers, sizes[number])
        left = int(lengths.sum(dtype=np.int64))
        with atomic_write(bin_path(prefixes[number])) as stream:
            stream.truncate(left * dtype.itemsize)
            while mock.fill and left:
                count = min(left, PIECE_ITEMS)
                stream.write(random.integers(0, mock.vocabulary, count, dtype).data)
                left -= count
                tick()
        write_idx(prefixes[number], lengths, dtype)
        with lock:
            progress.advance(sizes[number])
        return int(lengths.sum(dtype=np.int64))

    tokens = map_in_threads(write, range(mock.corpora), threads)
    return MockCorpora(tuple(prefixes), tuple(sizes), tuple(tokens), dtype.name)


def _lengths(
    random: np.random.Generator, kind: str, numbers: list[float], count: int
) -> NDArray[np.int32]:
    """Return the tokens of each document."""
    lengths = np.empty(count, np.int32)
    for begin in range(0, count, PIECE_ITEMS):
        part = lengths[begin : begin + PIECE_ITEMS]
        drawn: NDArray[Any]
        if kind == "constant":
            drawn = np.full(len(part), numbers[0])
        elif kind == "uniform":
            drawn = random.integers(int(numbers[0]), int(numbers[1]), len(part), endpoint=True)
        else:
            mean, sigma = numbers
            drawn = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, len(part))
        part[:] = np.clip(drawn, 1, MAX_DOCUMENT_TOKENS)
        tick()
    return lengths
