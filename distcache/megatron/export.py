"""Export a cache as the files that an unmodified Megatron-Core, or NeMo Automodel, looks for.

A directory belongs to one cache, by the `distcache.json` in it: the names of the files do not say
in which order samples are, so that two caches could have different arrays of one name.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import ArrayView, Cache, Contents
from distcache.cache.corpus_places import corpus_places
from distcache.cache.deal import CHUNK_SAMPLES, Deal, DealtSplit
from distcache.cache.digests import array_digest, joined_digest, leaves_of, read_pieces
from distcache.cache.mapped_section import map_section, open_own_idx
from distcache.cache.split_members import SplitMembers
from distcache.errors import CacheCorrupt, ConfigError
from distcache.megatron.arguments import (
    IN_THE_PLACE,
    Arguments,
    megatron_arguments,
    megatron_warnings,
)
from distcache.megatron.automodel import (
    TITLE,
    automodel_files,
    automodel_refusals,
    recipe_fields,
)
from distcache.megatron.names import NamedArrays, Naming, Rename, megatron_files
from distcache.plan.config import SPLITS
from distcache.storage.files import (
    TEMPORARY,
    atomic_write,
    closing_fd,
    is_plain_file,
    may_write,
    no_space_as_error,
    open_regular,
    read_file,
    read_range,
    recreate,
    require_text,
    sync_directory,
    temporary_name,
)
from distcache.storage.threads import decodable
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import tick

PIECE_BYTES: Final = 8 << 20  # bytes that are written at a time
RECORD: Final = "distcache.json"
OWN: Final = ("key", "automodel", "deal")  # fields that exports into one directory share
MAX_RECORD_BYTES: Final = 1 << 30  # bytes of a record of an export


@decodable
class Exported(msgspec.Struct, frozen=True):
    """The result of an export, which its directory keeps as `distcache.json`."""

    key: str  # key of the cache
    directory: str
    files: list[str]
    arguments: list[str]  # options with their values, or lines of YAML
    samples: dict[str, int | None]
    warnings: list[str]
    automodel: bool  # whether the files are NeMo Automodel's
    packed: bool  # whether the rows are packed
    deal: str | None = None  # how the steps of training are dealt, if they are


def export(
    cache: Cache,
    directory: Path,
    rename: Rename = str,
    naming: Naming = Naming(),  # noqa: B008  frozen
    threads: int = 2,
    objects: Path | None = None,
    deal: Deal | None = None,
    advance: Callable[[float], None] = lambda _: None,
) -> Exported:
    """Write the ``.npy`` files that Megatron looks for.

    Every array is compared with its digest before it counts, and every file appears whole. An
    array that exists already is left alone, or becomes a link to its equal under another name. The
    description, which Megatron looks for first, is written after its arrays.

    Parameters
    ----------
    cache : Cache
        The cache.
    directory : Path
        Directory; made if it does not exist. It belongs to this cache from then on.
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.
    naming : Naming
        The tokenizer, and the releases whose names the files get: hard links to the same arrays,
        or copies where the filesystem has none.
    threads : int
        Sections or blends that are written at a time.
    objects : Path or None
        Argument of `megatron_arguments`.
    deal : Deal or None
        Shape of the steps of training, whose samples are dealt: the arrays of its blend, or its
        shuffle index, are permuted within steps. These are written anew each time.
    advance : callable
        Receiver of the share of the arrays that is written.

    Returns
    -------
    Exported
        Also kept in the directory, as ``distcache.json``.

    Raises
    ------
    CacheCorrupt
        If an array differs from its digest.
    ConfigError
        If training would not find the arrays, the tokenizer is not known, the directory is not
        one, may not be written to or belongs to another cache, or a name is not UTF-8.
    NoSpace
        If the disk is full.
    """
    prefixes = [rename(prefix) for prefix in cache.prefixes]
    require_readable(cache, naming)
    permuted = {} if deal is None else _permuted(cache, naming, deal)
    directory = directory.absolute()  # it is part of the options, wherever training starts
    require_text(str(directory), *prefixes)
    wanted = list(named_files(cache, rename, naming))
    settings = _settings(cache, directory, rename, naming, objects)
    result = Exported(
        key=cache.key,
        directory=str(directory),
        files=[],
        arguments=list(settings.options),
        samples={split: cache.identity["samples"][split] for split in SPLITS},
        warnings=[*megatron_warnings(cache), *settings.warnings, *_needs(deal)],
        automodel=naming.automodel,
        packed="packing" in cache.identity,
        deal=None if deal is None else str(deal),
    )
    with may_write(directory, "choose another --out"), ThreadPoolExecutor(threads) as pool:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ConfigError(f"{directory}: is not a directory") from error
        _claim(directory, result, cache, wanted)
        _sweep(directory)
        _require_no_directories(directory, wanted)
        groups = _by_arrays(wanted)
        whole = sum(_nbytes(entries) for entries in groups) or 1

        def write(entries: list[NamedArrays]) -> list[str]:
            names = _write_entries(cache, entries, directory, permuted)
            advance(_nbytes(entries) / whole)
            return names

        written = pool.map(write, groups)
        files = [name for names in written for name in names]
        for path, text in settings.files.items():
            with atomic_write(path) as stream:
                stream.write(text.encode("utf-8"))
        result = msgspec.structs.replace(result, files=files)
        _write_record(directory / RECORD, result)
    return result


def named_files(cache: Contents, rename: Rename, naming: Naming) -> Iterator[NamedArrays]:
    """Yield everything that training would look for, each name once; see `megatron_files`."""
    if naming.automodel:
        return automodel_files(cache, rename, naming)
    return megatron_files(cache, rename, naming)


def require_readable(cache: Contents, naming: Naming) -> None:
    """Refuse a cache whose arrays training would not find, or would read in another way.

    Raises
    ------
    ConfigError
        Error that names every reason.
    """
    problems = []
    if "continue" in cache.identity:
        problems.append(
            "continues another cache, whose sections have other sizes than Megatron would compute, "
            "so that it would not find them; train with distcache.megatron.provider"
        )
    if "loss" in cache.identity:
        problems.append(
            "has loss masks of corpora, for which Megatron's files have no place; train with "
            "distcache.megatron.provider"
        )
    if "multiple" in cache.identity.get("packing", {}):
        problems.append(
            "pads each document in its sample, which Megatron's reader cannot; train with "
            "distcache.megatron.provider, or pad the documents of the corpora by `distcache "
            "materialize --multiple-of`"
        )
    if naming.automodel:
        problems += automodel_refusals(cache)
    if problems:
        raise ConfigError(*(f"{cache.path}: {problem}" for problem in problems))


def _settings(
    cache: Cache, directory: Path, rename: Rename, naming: Naming, objects: Path | None
) -> Arguments:
    """Return the options or YAML that make training look for the files."""
    stem = directory / Path(RECORD).stem
    if naming.automodel:
        return recipe_fields(cache, directory, stem, rename, naming)
    return megatron_arguments(cache, directory, stem, rename, objects)


def settings_text(exported: Exported) -> str:
    """Return the options or YAML of an export, after comments that say whose they are."""
    if exported.automodel:
        lines = "\n".join(exported.arguments)
        return f"# fields of the configuration\n# for {TITLE}:\n{lines}"
    options = " \\\n    ".join(exported.arguments)
    return (
        f"# options {IN_THE_PLACE},\n# and of these where the command has them\n"
        f"# for Megatron-Core:\n{options}"
    )


def export_in(directory: Path) -> Exported | None:
    """Return what a directory says of the export in it; None if it says nothing, or is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        text = read_file(directory / RECORD, MAX_RECORD_BYTES, follow=False)
        return msgspec.json.decode(text, type=Exported)
    return None


def _claim(directory: Path, result: Exported, cache: Cache, wanted: Iterable[NamedArrays]) -> None:
    """Make a directory this cache's; refuse that of another one.

    Arrays that Megatron itself wrote are replaced only by those of its own order: training would
    be given other samples without a word.

    Raises
    ------
    ConfigError
        If the directory belongs to another cache, or to other training.
    """
    there = export_in(directory)
    if there is None:
        stems = [entry.stem for entry in wanted]
        found = next(filter(lambda s: (directory / f"{s}-description.txt").exists(), stems), None)
        is_megatrons = cache.identity.get("order", "megatron") == "megatron" and not result.deal
        if found and not (is_megatrons and "phases" not in cache.identity):
            raise ConfigError(
                f"{directory / found}*: are of Megatron itself, whose samples are in another "
                "order; choose a separate directory with --out"
            )
        _write_record(directory / RECORD, result, claim=True)
        there = export_in(directory)
    if there is None or any(getattr(there, name) != getattr(result, name) for name in OWN):
        raise ConfigError(
            f"{directory}: has the files of another cache, or for other training, or other steps: "
            "those of two can have the same names; choose a separate directory with --out"
        )


def _write_record(path: Path, exported: Exported, *, claim: bool = False) -> None:
    """Write the record of an export; a claim only where no other export has made one."""
    whole = msgspec.json.format(msgspec.json.encode(exported), indent=2) + b"\n"
    if not claim:
        with atomic_write(path) as stream:
            stream.write(whole)
        return
    temporary = temporary_name(path)
    with no_space_as_error(path), recreate(temporary) as stream:
        stream.write(whole)
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        # Another export was first, unless it is a damaged one.
        if is_plain_file(path) and export_in(path.parent) is None:
            os.replace(temporary, path)
    except OSError:  # no links on this filesystem
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _require_no_directories(directory: Path, wanted: Iterable[NamedArrays]) -> None:
    """Refuse directories that have the names of files, before anything is written."""
    for entry in wanted:
        for name in entry.arrays:
            path = directory / f"{entry.stem}-{name}.npy"
            if path.is_dir():
                raise ConfigError(f"{path}: is a directory, and not a file; remove it")


def _sweep(directory: Path) -> None:
    """Remove what a killed export has left, unless it is recent and another one may write it."""
    for path in directory.glob(".*.part"):
        with contextlib.suppress(FileNotFoundError):  # another export has ended
            left = path.lstat()
            is_old = time.time() - left.st_mtime > limits().leftover
            if is_old and TEMPORARY.fullmatch(path.name) and stat.S_ISREG(left.st_mode):
                path.unlink()


def _by_arrays(files: Iterable[NamedArrays]) -> list[list[NamedArrays]]:
    """Return those together that have the same arrays under several names."""
    found: dict[tuple[int, ...], list[NamedArrays]] = {}
    for file in files:
        views = (number for view in file.arrays.values() for number in (view.offset, *view.shape))
        found.setdefault(tuple(views), []).append(file)
    return list(found.values())


def _nbytes(entries: Sequence[NamedArrays]) -> int:
    """Return the bytes of arrays under several names, each once."""
    return sum(view.nbytes for view in entries[0].arrays.values())


Permuted = dict[int, "_Permutation"]
"""Permutations of arrays, by the byte of the cache at which each array begins."""


class _Permutation:
    """The order of a split whose steps are dealt: for each place, which sample of its step."""

    def __init__(self, dealt: DealtSplit) -> None:
        deal = dealt.deal
        self.begin, self.batch = deal.begin, deal.batch
        self._within = np.empty((dealt.steps, deal.batch), np.min_scalar_type(deal.batch - 1))
        each = max(CHUNK_SAMPLES // deal.batch, 1)
        for first in range(0, dealt.steps, each):
            last = min(first + each, dealt.steps)
            self._within[first:last], _ = dealt.deal_steps(first, last)
            tick()

    def pieces(self, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the values of an array in this order, those without a step as they are."""
        yield values[: self.begin]
        each = max(CHUNK_SAMPLES // self.batch, 1)
        for first in range(0, len(self._within), each):
            within = self._within[first : first + each]
            begin = self.begin + first * self.batch
            steps = values[begin : begin + within.size].reshape(-1, self.batch)
            yield np.take_along_axis(steps, within.astype(np.intp), axis=1).reshape(-1)
        yield values[self.begin + self._within.size :]


def _needs(deal: Deal | None) -> list[str]:
    """Return what training has to do that reads dealt steps."""
    if deal is None:
        return []
    found = [
        f"the steps are dealt as {deal}: train with --global-batch-size {deal.batch} and "
        f"--micro-batch-size {deal.micro_batch} on {deal.ranks} data-parallel ranks, or on a "
        "number of ranks that divides it, without a ramp of the batch size"
    ]
    if deal.micro_batch > 1:
        found.append(
            "micro batches have other samples than without the deal: give "
            "--calculate-per-token-loss, or the loss weighs tokens in another way"
        )
    return found


def _permuted(cache: Cache, naming: Naming, deal: Deal) -> Permuted:
    """Return how arrays of the split `train` are permuted: of the blend, or of the only section.

    Raises
    ------
    ConfigError
        If the steps cannot be dealt, or training would not take them in order.
    """
    if naming.automodel:
        raise ConfigError(f"--deal {deal}: NeMo Automodel draws in an order of its own")
    split = SplitMembers(cache, "train")
    for _, source in split.pairs:
        if cache.columns_of(source):
            raise ConfigError(
                f"--deal {deal}: {cache.prefixes[source]} consists of rows, not of tokens"
            )
    places = corpus_places(cache)
    sections = [(row, open_own_idx(cache, source, places[source])) for row, source in split.pairs]
    order = _Permutation(
        DealtSplit(split, deal, lambda member: map_section(cache, *sections[member]))
    )
    members = cache.table("members")
    blend = int(members["blend"][members["split"] == b"train"][0])
    if blend < 0:
        views = [cache.arrays("sections", split.pairs[0][0])["shuffle_index"]]
    else:
        views = list(cache.arrays("blends", blend).values())
    return {view.offset: order for view in views}


def _write_entries(
    cache: Cache, entries: list[NamedArrays], directory: Path, permuted: Permuted
) -> list[str]:
    """Write arrays under all their names, each name's description last; return the names."""
    names = []
    first = entries[0]
    for entry in entries:
        for view in entry.arrays.values():
            names.append(f"{entry.stem}-{view.name}.npy")
            source = directory / f"{first.stem}-{view.name}.npy"
            if entry is first or not _link(source, directory / names[-1]):
                _write_array(cache, view, directory / names[-1], permuted.get(view.offset))
        names.append(f"{entry.stem}-description.txt")
        with atomic_write(directory / names[-1]) as stream:
            stream.write(entry.description.encode("utf-8"))
    return names


def _link(source: Path, path: Path) -> bool:
    """Return whether a name is a hard link to another now; if not, neither is changed."""
    with contextlib.suppress(OSError):
        if os.path.samestat(source.lstat(), path.lstat()):
            return True
    temporary = temporary_name(path)
    try:
        os.link(source, temporary, follow_symlinks=False)
    except OSError:  # none on this filesystem, or too many
        return False
    try:
        os.replace(temporary, path)
    finally:  # it stays where both are one file, by another export
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def wrong_files(
    cache: Cache,
    directory: Path,
    rename: Rename = str,
    naming: Naming = Naming(),  # noqa: B008  frozen
) -> Iterator[Path]:
    """Yield each file of an export that differs from what `export` writes."""
    for entry in named_files(cache, rename, naming):
        for view in entry.arrays.values():
            path = directory / f"{entry.stem}-{view.name}.npy"
            if not _is_there(path, cache.read(view), view.digest):
                yield path
        path = directory / f"{entry.stem}-description.txt"
        try:
            right = is_plain_file(path) and path.read_text("utf-8") == entry.description
        except (OSError, ValueError):
            right = False
        if not right:
            yield path


def _write_array(
    cache: Cache, view: ArrayView, path: Path, order: _Permutation | None = None
) -> None:
    """Write an array, in another order if there is one."""
    array = cache.read(view)
    if array_digest(leaves_of(array)) != view.digest:
        raise CacheCorrupt(
            f"{cache.path}: {view.name} at byte {view.offset} differs from its digest"
        )
    if order is None and _is_there(path, array, view.digest):
        return
    header = np.lib.format.header_data_from_array_1_0(array)
    with atomic_write(path) as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for piece in [array] if order is None else order.pieces(array):
            content = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            for begin in range(0, content.size, PIECE_BYTES):
                stream.write(content[begin : begin + PIECE_BYTES].data)
                tick()
        cache.require_intact()


def _is_there(path: Path, array: NDArray[Any], digest: str) -> bool:
    """Return whether a file already has an array; it may be in use, and is then kept."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
    header = stream.getvalue()
    size = len(header) + array.nbytes
    try:
        with closing_fd(open_regular(path, follow=False)) as descriptor:
            if os.fstat(descriptor).st_size != size:
                return False
            if read_range(descriptor, 0, len(header)) != header:
                return False
            pieces = read_pieces(descriptor, len(header), size)
            return joined_digest(leaves_of(piece).tobytes() for piece in pieces) == digest
    except (OSError, EOFError, CacheCorrupt):  # missing, or truncated since
        return False
