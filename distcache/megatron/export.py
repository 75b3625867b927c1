"""Export a cache as the files that an unmodified Megatron-Core, or another framework, looks for."""

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

from distcache.cache.contents import ArrayView, Cache
from distcache.cache.digests import array_digest, joined_digest, leaves_of, read_pieces
from distcache.errors import CacheCorrupt, ConfigError, NotReady
from distcache.megatron.arguments import IN_THE_PLACE, megatron_warnings
from distcache.megatron.frameworks.framework import AS_YAML, ExportPlace
from distcache.megatron.frameworks.known_frameworks import (
    FRAMEWORKS,
    framework_of,
    named_files,
    require_readable,
)
from distcache.megatron.names import MEGATRON, FrameworkName, NamedArrays, Naming
from distcache.plan.config import SPLITS
from distcache.plan.identity import meaning_of
from distcache.storage.files import (
    TEMPORARY,
    atomic_write,
    closing_fd,
    is_plain_file,
    may_write,
    open_regular,
    read_file,
    read_range,
    require_text,
    sync_directory,
    temporary_name,
)
from distcache.storage.locks import try_lock
from distcache.storage.threads import decodable
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import tick

PIECE: Final = 8 << 20  # bytes that are written at a time
LOCK: Final = "distcache-export.lock"
POLL: Final = 0.1  # seconds
LARGEST: Final = 1 << 30  # bytes of a record of an export


@decodable
class Exported(msgspec.Struct, frozen=True):
    """The result of an export: files, the framework's settings, samples and warnings.

    `arguments` are options with their values, or lines of YAML. `meaning` has those parts of the
    cache's identity that Megatron's names do not have.
    """

    directory: str
    files: list[str]
    arguments: list[str]
    samples: dict[str, int | None]
    warnings: list[str]
    meaning: dict[str, Any] = {}
    framework: FrameworkName = MEGATRON


def export(
    cache: Cache,
    directory: Path,
    rename: Callable[[str], str] = str,
    naming: Naming = Naming(),  # noqa: B008  frozen
    threads: int = 2,
    objects: Path | None = None,
    here: Sequence[str] | None = None,
) -> Exported:
    """Write the ``.npy`` files that a framework looks for.

    Every array is compared with its digest before it counts, and every file appears whole. An
    array that exists already is left alone, or becomes a link to its equal under another name. The
    description, which frameworks look for first, is written after its arrays.

    Parameters
    ----------
    cache : Cache
        The cache.
    directory : Path
        Directory; made if it does not exist.
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.
    naming : Naming
        The framework, the tokenizer, and the releases whose names the files get: hard links to the
        same arrays, or copies where the filesystem has none.
    threads : int
        Sections or blends that are written at a time.
    objects : Path or None
        Argument of `megatron_arguments`.
    here : sequence of str or None
        Paths under which the `.idx` of the corpora can be read now; by default the cache's own.

    Returns
    -------
    Exported
        Also kept in the directory, as ``distcache-<key>.json``, with the name of a framework other
        than Megatron-Core before the suffix.

    Raises
    ------
    CacheCorrupt
        If an array differs from its digest.
    ConfigError
        If the framework would not find the arrays, the tokenizer is not known, the directory is
        not one or may not be written to, a name is not UTF-8, or arrays of another order have the
        names.
    NoSpace
        If the disk is full.
    """
    prefixes = [rename(prefix) for prefix in cache.prefixes]
    require_readable(cache, naming, rename, here or cache.prefixes)
    directory = directory.absolute()  # it is part of the options, wherever training starts
    unspeakable = set(str(directory)) & set(framework_of(naming).separators)
    if unspeakable or str(directory) != str(directory).strip():
        raise ConfigError(
            f"{str(directory)!r}: {framework_of(naming).title} cannot be given a directory with "
            f"one of {framework_of(naming).separators!r} in its name, or a blank at its end"
        )
    require_text(str(directory), *prefixes)
    wanted = list(named_files(cache, rename, naming))
    record = _record_stem(cache, naming)
    own = (record, *{entry.stem for entry in wanted})
    with may_write(directory, "choose another --out"), ThreadPoolExecutor(threads) as pool:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ConfigError(f"{directory}: is not a directory") from error
        with _alone(directory):
            _sweep(directory, own)
            _require_own_blends(naming, directory / f"{record}.json")
            _require_same_meaning(cache, wanted, directory / f"{record}.json")
            alike = _by_arrays(wanted)
            written = pool.map(lambda entries: _write_entries(cache, entries, directory), alike)
            files = [name for names in written for name in names]
            place = ExportPlace(directory, directory / record, objects)
            return _describe_export(cache, place, files, rename, naming)


def _record_stem(cache: Cache, naming: Naming) -> str:
    """Return the start of the names of the record and of what goes with it."""
    suffix = "" if naming.reader == MEGATRON else f"-{naming.reader}"
    return f"distcache-{cache.key[:16]}{suffix}"


def settings_text(exported: Exported) -> str:
    """Return the options or YAML of an export, after comments that say whose they are."""
    framework = FRAMEWORKS[exported.framework]
    place = f"# options {IN_THE_PLACE},\n# and of these where the command has them\n"
    if framework.joint == AS_YAML:
        place = "# fields of the configuration\n"
    return f"{place}# for {framework.title}:\n{framework.joint.join(exported.arguments)}"


def exports_in(directory: Path) -> dict[str, Exported]:
    """Return what a directory says of the exports in it, by the names of these records."""
    found = {}
    for path in sorted(directory.glob("distcache-*.json")):
        with contextlib.suppress(OSError, ValueError, RecursionError):  # of another kind
            text = read_file(path, LARGEST, follow=False)
            found[path.name] = msgspec.json.decode(text, type=Exported)
    return found


def _require_own_blends(naming: Naming, path: Path) -> None:
    """Refuse other blends beside those of a framework that takes any that it finds.

    Raises
    ------
    ConfigError
        Naming the record of the other export.
    """
    for record, found in exports_in(path.parent).items():
        kinds = (framework_of(naming), FRAMEWORKS[found.framework])
        confused = next((kind.title for kind in kinds if kind.takes_any_blend), None)
        has_blends = any("-BlendedDataset-" in name for name in found.files)
        if record != path.name and confused is not None and has_blends:
            raise ConfigError(
                f"{path.parent}: has the blends of the export {record} already, and {confused} "
                "would not know which to take; choose a directory of its own with --out"
            )


def _require_same_meaning(cache: Cache, wanted: Iterable[NamedArrays], path: Path) -> None:
    """Refuse to replace arrays that have the same names, and are of another order.

    Training would be given other samples without a word. Arrays of this cache, or of one of the
    same order, may be damaged, and are replaced; so are those that Megatron wrote, by its order.

    Raises
    ------
    ConfigError
        Naming the first of them.
    """
    directory, meaning = path.parent, meaning_of(cache.identity)
    alike, others = set[str](), dict[str, str]()
    for record, found in exports_in(directory).items():
        if record == path.name or found.meaning == meaning:
            alike.update(found.files)
        else:
            unsaid = "" if found.meaning else ", which does not say in which order they are"
            others |= dict.fromkeys(found.files, f"the export {record}{unsaid}")
    is_megatrons = meaning["order"] == "megatron" and "phases" not in meaning
    for entry in wanted:
        for view in entry.arrays.values():
            name = f"{entry.stem}-{view.name}.npy"
            there = directory / name
            if there.is_dir():
                raise ConfigError(f"{there}: is a directory, and not a file; remove it")
            if name in alike or (is_megatrons and name not in others):
                continue
            if os.path.lexists(there) and not _is_there(there, *_content(cache, view, entry.rows)):
                whose = others.get(name, "Megatron itself")
                raise ConfigError(
                    f"{there}: is of {whose}, and differs: samples in another order, or packed in "
                    "another way, have the same names; choose a directory of its own with --out"
                )


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait until no other export writes to a directory, where the filesystem has locks.

    Raises
    ------
    NotReady
        If another one does not end.
    """
    path, end = directory / LOCK, time.monotonic() + limits().stalled
    descriptor = None
    with contextlib.suppress(OSError):  # a filesystem without locks, or files of another user
        while (descriptor := try_lock(path)) is None:
            tick()
            if time.monotonic() > end:
                raise NotReady(f"{path}: another export has not ended in {limits().stalled:.0f} s")
            time.sleep(POLL)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _sweep(directory: Path, own: tuple[str, ...]) -> None:
    """Remove what a killed export of files that begin so has left, unless it is recent."""
    for path in directory.glob(".*.part"):
        found = TEMPORARY.fullmatch(path.name)
        if found and found[1].startswith(own):
            with contextlib.suppress(FileNotFoundError):  # another export is at it
                left = path.lstat()
                is_old = time.time() - left.st_mtime > limits().leftover
                if is_old and stat.S_ISREG(left.st_mode):
                    path.unlink()


def _by_arrays(files: Iterable[NamedArrays]) -> list[list[NamedArrays]]:
    """Return those together that have the same arrays under several names."""
    found: dict[tuple[int, ...], list[NamedArrays]] = {}
    for file in files:
        views = (number for view in file.arrays.values() for number in (view.offset, *view.shape))
        found.setdefault((file.rows or -1, *views), []).append(file)
    return list(found.values())


def _write_entries(cache: Cache, entries: list[NamedArrays], directory: Path) -> list[str]:
    """Write arrays under all their names, each name's description last; return the names."""
    names = []
    first = entries[0]
    for entry in entries:
        for view in entry.arrays.values():
            names.append(f"{entry.stem}-{view.name}.npy")
            source = directory / f"{first.stem}-{view.name}.npy"
            if entry is first or not _link(source, directory / names[-1]):
                _write_array(cache, view, entry.rows, directory / names[-1])
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


def _describe_export(
    cache: Cache, place: ExportPlace, files: list[str], rename: Callable[[str], str], naming: Naming
) -> Exported:
    """Write the files with the settings and the blend."""
    settings = framework_of(naming).settings(cache, place, rename, naming)
    for path, text in settings.files.items():
        with atomic_write(path) as stream:
            stream.write(text.encode("utf-8"))
    result = Exported(
        directory=str(place.directory),
        files=files,
        arguments=list(settings.options),
        samples={split: cache.identity["samples"][split] for split in SPLITS},
        warnings=[*megatron_warnings(cache), *settings.warnings],
        meaning=meaning_of(cache.identity),
        framework=naming.reader,
    )
    with atomic_write(f"{place.stem}.json") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def wrong_files(
    cache: Cache,
    directory: Path,
    rename: Callable[[str], str] = str,
    naming: Naming = Naming(),  # noqa: B008  frozen
) -> Iterator[str]:
    """Yield a message for each file of an export that differs from what `export` writes."""
    for entry in named_files(cache, rename, naming):
        for view in entry.arrays.values():
            path = directory / f"{entry.stem}-{view.name}.npy"
            if not _is_there(path, *_content(cache, view, entry.rows)):
                yield f"{path}: is not what the cache says; export it again"
        path = directory / f"{entry.stem}-description.txt"
        try:
            right = is_plain_file(path) and path.read_text("utf-8") == entry.description
        except (OSError, ValueError):
            right = False
        if not right:
            yield f"{path}: is not what the cache says; export it again"


def _content(cache: Cache, view: ArrayView, rows: int | None) -> tuple[NDArray[Any], str]:
    """Return the rows of an array that a file has, and their digest."""
    array = cache.read(view)
    if rows is None or rows >= len(array):
        return array, view.digest
    return array[:rows], array_digest(leaves_of(array[:rows]))


def _write_array(cache: Cache, view: ArrayView, rows: int | None, path: Path) -> None:
    if array_digest(leaves_of(cache.read(view))) != view.digest:
        raise CacheCorrupt(
            f"{cache.path}: {view.name} at byte {view.offset} differs from its digest"
        )
    array, digest = _content(cache, view, rows)
    if _is_there(path, array, digest):
        return
    header = np.lib.format.header_data_from_array_1_0(array)
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with atomic_write(path) as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for begin in range(0, content.size, PIECE):
            stream.write(content[begin : begin + PIECE].data)
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
