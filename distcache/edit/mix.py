"""A list of MDS data sets, as loaders have them, as corpora and a blend."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from distcache.corpus.mds.index_json import read_index
from distcache.corpus.receipt import read_receipt, receipt_path
from distcache.edit.index_mds import index_mds
from distcache.edit.mds_scan import MdsOptions
from distcache.edit.mirror import Mirrored, mirror, mirrored
from distcache.edit.mix_recipe import MAX_SAMPLES, MixStream, Recipe
from distcache.errors import (
    BuildInterrupted,
    ConfigError,
    DistcacheError,
    error_from_exit_code,
)
from distcache.option import Option
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0, own_share
from distcache.ranks.communicator import Communicator, SerialCommunicator
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.storage.files import atomic_write, make_directories, may_write, no_space_as_error
from distcache.storage.url import is_url

INDEXED_AT_ONCE: Final = 16  # data sets: most of the time goes to syncing small files
BLEND: Final = "blend.json"


class MixOptions(msgspec.Struct, frozen=True):
    """How to mix.

    Attributes
    ----------
    mds : MdsOptions
        Options for data sets that are not indexed yet.
    """

    mds: MdsOptions = MdsOptions()
    sequence_length: Annotated[
        int | None,
        Option("Tokens of a sample; needed without --rows.", least=2, most=2**31 - 2),
    ] = None
    samples: Annotated[
        int | None,
        Option(
            "Samples of training; by default one pass.",
            "--train-samples",
            least=1,
            most=MAX_SAMPLES,
        ),
    ] = None
    validation: Annotated[int, Option("Samples of each validation set, at most.", least=1)] = 512
    seed: Annotated[int, Option("Seed of the blend.", least=0, most=2**32 - 1)] = 1234
    shuffle: Annotated[
        Literal["passes", "windows"], Option("Shuffle samples over whole passes, or in windows.")
    ] = "passes"


class Mixed(msgspec.Struct, frozen=True):
    """The result of a mix."""

    path: str  # path of the configuration
    # data sets of each
    train: int
    valid: int
    samples: int  # samples of training


class _SetFailure(msgspec.Struct, frozen=True):
    """What is wrong with a data set."""

    exit_code: int
    problems: tuple[str, ...]


def mix(
    communicator: Communicator,
    recipe: Recipe,
    directory: str,
    options: MixOptions,
    threads: int = 1,
    progress: Progress | None = None,
) -> Mixed:
    """Index the data sets of a list that are not, and write the configuration. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the data sets.
    recipe : Recipe
        The data sets.
    directory : str
        Directory of the corpora and the configuration; the corpora that it has are used.
    options : MixOptions
        Order, seed and samples of the blend, and how to index.
    threads : int
        Threads of each rank, which works on 16 data sets at a time with at least one each.
    progress : Progress or None
        Receives the progress of rank 0.

    Raises
    ------
    DistcacheError
        With what is wrong with all data sets.
    """
    if not options.mds.rows and options.sequence_length is None:
        raise ConfigError("give --sequence-length for tokens, or --rows").of_all_ranks()
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)
    with aborting_on_error(communicator):
        asked = (*recipe.train, *recipe.valid)
        if recipe.passed:
            watch.note(f"these fields are not used: {_by_name(recipe.passed)}")
        on_rank_0(communicator, lambda: _make_room(directory), None, "making room")
        streams = _download_sets(communicator, asked, directory, watch)
        own = own_share(communicator, streams)
        watch.phase("indexing data sets", len(own))
        found = on_all_ranks(
            communicator,
            lambda: _index_all(own, directory, options, threads, watch),
            "indexing data sets",
        )
        _require_all(communicator, found)
        return on_rank_0(
            communicator, lambda: _write(recipe, directory, options), Mixed, "writing the blend"
        )


def _by_name(fields: Sequence[str]) -> str:
    """Return places of fields, or their number where one name has several."""
    places: dict[str, list[str]] = {}
    for field in fields:
        places.setdefault(field.rpartition(".")[2], []).append(field)
    return ", ".join(
        found[0] if len(found) == 1 else f"{name} (in {len(found)} places)"
        for name, found in places.items()
    )


def _download_sets(
    communicator: Communicator, streams: Sequence[MixStream], directory: str, progress: Progress
) -> list[MixStream]:
    """Bring the shards of data sets in buckets, and return all with their directories. Collective.

    They go to streaming's `local`, or else beside the corpora.
    """
    homes = [
        os.path.join(directory, "mds", stream.name)
        if is_url(stream.directory)
        else stream.directory
        for stream in streams
    ]
    sets = [
        mirrored(stream.url, stream.split, home)
        for stream, home in zip(streams, homes, strict=True)
        if stream.url
    ]

    def find_missing() -> list[Mirrored]:
        own = os.path.join(directory, "mds")  # where versions tell what has changed
        return [
            found
            for found in sets
            if found.directory.startswith(own) or not _is_whole(found.directory)
        ]

    missing = on_rank_0(communicator, find_missing, list[Mirrored], "looking for shards")
    mirror(communicator, missing, progress)
    pairs = zip(streams, homes, strict=True)
    return [msgspec.structs.replace(stream, directory=home) for stream, home in pairs]


def _is_whole(directory: str) -> bool:
    """Return whether a data set is there with all its shards: streaming's cache may lack some."""
    try:
        shards = read_index(directory).shards
    except DistcacheError:
        return False
    return all(
        any(
            _has_size(os.path.join(directory, file.basename), file.bytes)
            for file in (shard.raw_data, shard.zip_data)
            if file is not None
        )
        for shard in shards
    )


def _has_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False


def _make_room(directory: str) -> None:
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise ConfigError(f"--out {directory}: is a file; expected a directory for the corpora")
    with may_write(Path(directory), "choose another --out"):
        make_directories(Path(directory))


def _index_all(
    streams: Sequence[MixStream],
    directory: str,
    options: MixOptions,
    threads: int,
    progress: Progress,
) -> list[_SetFailure | None]:
    """Index data sets, several at a time, and return what is wrong with each."""
    stop = threading.Event()
    each = max(1, threads // max(min(INDEXED_AT_ONCE, len(streams)), 1))

    def index(stream: MixStream) -> _SetFailure | None:
        wanted = msgspec.structs.replace(options.mds, split=stream.split or options.mds.split)
        out = os.path.join(directory, stream.name)
        try:
            index_mds(SerialCommunicator(), [stream.directory], out, wanted, each, _Stoppable(stop))
        except BuildInterrupted:
            raise
        except DistcacheError as error:
            return _SetFailure(error.exit_code, error.problems)
        progress.advance(1)
        return None

    # Each in a thread of its own, as a job of one rank: this one is within an agreement of all.
    with ThreadPoolExecutor(INDEXED_AT_ONCE) as pool:
        try:
            return list(pool.map(index, streams))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


class _Stoppable(NullProgress):
    """The progress of a data set, which ends the work on it when all shall end."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def advance(self, amount: float) -> None:
        """Raise `BuildInterrupted` once the run is to stop."""
        if self._stop.is_set():
            raise BuildInterrupted("another data set has failed, or a signal has come")


def _require_all(communicator: Communicator, own: list[_SetFailure | None]) -> None:
    """Raise what is wrong with the data sets of all ranks, in the order of the list. Collective."""
    shares = communicator.allgather(own, list[_SetFailure | None], "what is wrong with data sets")
    in_order = itertools.chain.from_iterable(itertools.zip_longest(*shares))
    failures = [failure for failure in in_order if failure is not None]
    if failures:
        problems = [problem for failure in failures for problem in failure.problems]
        raise error_from_exit_code(failures[0].exit_code, *problems).of_all_ranks()


def _write(recipe: Recipe, directory: str, options: MixOptions) -> Mixed:
    """Write the configuration of the blend."""

    def size_of(stream: MixStream) -> int:
        receipt = read_receipt(receipt_path(os.path.join(directory, stream.name)))
        if options.mds.rows:
            return receipt.sequences
        return receipt.tokens // (options.sequence_length or 1)  # samples of training

    sizes = [size_of(stream) for stream in recipe.train]
    weights = [_weight(stream, size) for stream, size in zip(recipe.train, sizes, strict=True)]
    relative = any(stream.proportion is not None for stream in recipe.train)
    one_pass = sum(sizes) if relative else math.ceil(sum(weights))
    samples = options.samples or one_pass
    if recipe.train and not (any(weights) and samples <= MAX_SAMPLES):
        raise ConfigError(
            f"train: its data sets give {one_pass} samples, expected 1 to {MAX_SAMPLES}; change "
            "choose or repeat"
        )
    train = [
        {"path": os.path.join(directory, stream.name), "weight": weight}
        for stream, weight in zip(recipe.train, weights, strict=True)
        if weight > 0
    ]
    valid = [
        {
            "path": os.path.join(directory, stream.name),
            "samples": _validation_samples(stream, size_of(stream), options.validation),
        }
        for stream in recipe.valid
        if 0 not in (stream.choose, stream.repeat, stream.proportion)
    ]
    return _write_blend(os.path.join(directory, BLEND), train, valid, samples, options)


def _validation_samples(stream: MixStream, size: int, most: int) -> int:
    share = 1.0 if stream.repeat is None else min(stream.repeat, 1.0)
    part = max(1, int(size * share)) if size else 0
    return min(most, part, most if stream.choose is None else stream.choose)


def _write_blend(
    path: str,
    train: list[dict[str, Any]],
    valid: list[dict[str, Any]],
    samples: int,
    options: MixOptions,
) -> Mixed:
    fields: dict[str, Any] = {
        "sequence_length": options.sequence_length or 1,  # of rows
        "seed": options.seed,
        "shuffle": options.shuffle,
        "samples": {"train": samples, "valid": 0, "test": 0},
        "blend_per_split": {"train": train} | ({"valid": valid} if valid else {}),
        "multiple_validation_sets": True,
    }
    with no_space_as_error(path), atomic_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n")
    return Mixed(path, len(train), len(valid), samples)


def _weight(stream: MixStream, size: int) -> float:
    """Return the samples that a pass takes of a data set, or its share."""
    if stream.proportion is not None:
        return stream.proportion
    if stream.choose is not None:
        return float(stream.choose)
    return float(int(size * (1.0 if stream.repeat is None else stream.repeat)))
