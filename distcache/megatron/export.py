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
from distcache.cache.deal import Deal
from distcache.cache.digests import array_digest, joined_digest, leaves_of, read_pieces
from distcache.cache.mapped_section import multiple_of
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
from distcache.megatron.dealt_export import DealtOrder, dealt_order, needs_of
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
SHARED_FIELDS: Final = ("key", "automodel", "deal")  # fields that exports into one directory share
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
    deal: str | None = None  # deal of the steps of training, if there is one


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
        Deal of the steps of training: the arrays of its blend, or its shuffle index, are permuted
        within steps. Every export writes these again.
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
    order = None if deal is None else dealt_order(cache, naming, deal)
    directory = directory.absolute()  # it is part of the options, wherever training starts
    require_text(str(directory), *prefixes)
    wanted = list(named_files(cache, rename, naming))
    settings = _settings(cache, directory, rename, naming, objects)
    needs = [] if deal is None else needs_of(deal)
    result = Exported(
        key=cache.key,
        directory=str(directory),
        files=[],
        arguments=list(settings.options),
        samples={split: cache.identity["samples"][split] for split in SPLITS},
        warnings=[*megatron_warnings(cache), *settings.warnings, *needs],
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
        groups = _by_arrays(wanted, apart=order is not None)
        whole = sum(_nbytes(entries) for entries in groups) or 1

        def write(entries: list[NamedArrays]) -> list[str]:
            names = _write_entries(cache, entries, directory, order)
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
    if multiple_of(cache) > 1:
        problems.append(
            "has padded documents, which Megatron's reader cannot make; train with "
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
    if there is None or any(
        getattr(there, name) != getattr(result, name) for name in SHARED_FIELDS
    ):
        raise ConfigError(
            f"{directory}: has the files of another cache, deal or trainer, whose names can be "
            "equal; choose a separate directory with --out"
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


def _by_arrays(files: Iterable[NamedArrays], *, apart: bool) -> list[list[NamedArrays]]:
    """Return those together that have the same arrays under several names; if asked, by split."""
    found: dict[tuple[int | str, ...], list[NamedArrays]] = {}
    for file in files:
        views = (number for view in file.arrays.values() for number in (view.offset, *view.shape))
        found.setdefault((file.split if apart else "", *views), []).append(file)
    return list(found.values())


def _nbytes(entries: Sequence[NamedArrays]) -> int:
    """Return the bytes of arrays under several names, each once."""
    return sum(view.nbytes for view in entries[0].arrays.values())


def _write_entries(
    cache: Cache, entries: list[NamedArrays], directory: Path, order: DealtOrder | None
) -> list[str]:
    """Write arrays under all their names, each name's description last; return the names."""
    names = []
    first = entries[0]
    for entry in entries:
        for view in entry.arrays.values():
            names.append(f"{entry.stem}-{view.name}.npy")
            source = directory / f"{first.stem}-{view.name}.npy"
            if entry is first or not _link(source, directory / names[-1]):
                own = order if order is not None and order.is_of(entry, view) else None
                _write_array(cache, view, directory / names[-1], own)
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
    cache: Cache, view: ArrayView, path: Path, order: DealtOrder | None = None
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
