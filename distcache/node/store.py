"""A node's store: the directory that holds its copies, and every path in it.

.distcache-store          the marker
lock                      locked by the process that changes the store
caches/NAME.h5            a cache
caches/NAME.json          its ready record, written last
caches/NAME.lock          locked, shared, by users of the cache; its time is the last use
corpora/STEM.idx, .bin    the index of a corpus, and a link to its shared tokens
objects/BUCKET/KEY.idx    the index of a corpus in a bucket, where Megatron looks for it
ahead/                    what the fetcher of the node has read ahead of training
megatron/NAME/            the same cache as Megatron's files
**/.*.part                unfinished files
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from distcache.cache.format import Header
from distcache.corpus import idx_path
from distcache.errors import ConfigError, DistcacheError, NoSpace
from distcache.ranks.job_environment import SCRATCH
from distcache.storage.files import (
    NOT_ALLOWED,
    TEMPORARY,
    closing_fd,
    open_directory,
    require_text,
    set_mode,
)
from distcache.storage.url import require_file

LOCAL_DIRECTORY: Final = "DISTCACHE_LOCAL_DIR"
MARKER: Final = ".distcache-store"
MARK: Final = b"distcache store, version 1\n"
PARTS: Final = ("caches", "corpora", "megatron", "windows", "ahead", "objects")
UNKNOWN: Final = 1 << 62  # free bytes of a filesystem that does not report them
MEMORY_BACKED: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def local_directory(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the directory of this node's store, or None if it is not set.

    Parameters
    ----------
    given : path or None
        Directory that the user asks for; it comes first.
    environment : mapping
        Environment; then DISTCACHE_LOCAL_DIR, then a directory of the user's in
        SLURM_TMPDIR or TMPDIR.
    """
    if given == "":
        raise ConfigError("--store is empty; give a directory of the node")
    if given is not None:
        require_file(given, "--store", "give a directory of the node")
        return Path(given).absolute()
    if named := environment.get(LOCAL_DIRECTORY):
        return Path(named).absolute()
    for variable in SCRATCH:
        if scratch := environment.get(variable):
            return Path(scratch).absolute() / f"distcache-{os.geteuid()}"
    return None


def required_directory(given: str | Path | None, environment: Mapping[str, str]) -> Path:
    """Return the directory of this node's store.

    Raises
    ------
    ConfigError
        If nothing says it.
    """
    directory = local_directory(given, environment)
    if directory is not None:
        require_text(str(directory))
    else:
        raise ConfigError(
            f"name a directory of the node (`localize --store`), or set {LOCAL_DIRECTORY}; neither "
            f"{' nor '.join(SCRATCH)} is set either"
        )
    return directory


def cache_name(header: Header) -> str:
    """Return the name of a cache in a store, which depends on content and tables."""
    return f"{header.key[:16]}-{header.tables_digest.hex()[:16]}"


class Store:
    """The paths of a store; `make_store` and `existing_store` check that it is one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "lock"
        self.caches = root / "caches"
        self.corpora = root / "corpora"
        self.megatron = root / "megatron"
        self.windows = root / "windows"
        self.ahead = root / "ahead"
        self.objects = root / "objects"

    def cache(self, name: str) -> Path:
        """Return the cache file."""
        return self.caches / f"{name}.h5"

    def ready(self, name: str) -> Path:
        """Return the ready record of a cache."""
        return self.caches / f"{name}.json"

    def use_lock(self, name: str) -> Path:
        """Return the lock of the users of a cache."""
        return self.caches / f"{name}.lock"

    def prefix(self, stem: str) -> str:
        """Return the path of a corpus without suffix."""
        return str(self.corpora / stem)

    def object_index(self, url: str) -> Path:
        """Return where Megatron looks for the index of a corpus in a bucket."""
        return self.objects / idx_path(url.partition("://")[2])

    def view(self, name: str) -> Path:
        """Return the directory of Megatron's files."""
        return self.megatron / name


def part_of(path: Path) -> Path:
    """Return the path of a file while it is not complete."""
    return path.with_name(f".{path.name}.part")


def sweep(store: Store) -> None:
    """Remove temporary files of killed writers. The store is locked.

    Unfinished copies have other names, and are kept: the next run resumes them.
    """
    for directory in (store.caches, store.corpora, store.megatron, *store.megatron.iterdir()):
        if directory.is_dir() and not directory.is_symlink():
            for path in directory.glob(".*.part"):
                if TEMPORARY.fullmatch(path.name):
                    path.unlink()


def make_store(root: Path) -> Store:
    """Make a store, unless it exists; an empty directory of the user becomes one.

    Raises
    ------
    DistcacheError
        If the directory is a link, another user's, open to others, or has other files.
    """
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DistcacheError(f"{root}: is not a directory; choose another with --store") from None
    except OSError as error:
        if error.errno not in NOT_ALLOWED:
            raise
        raise DistcacheError(
            f"{root}: you may not make it ({error.strerror}); choose another with --store"
        ) from error
    _require_own(root)
    marker = root / MARKER
    names = os.listdir(root)
    if names and MARKER not in names:
        raise DistcacheError(
            f"{root}: holds files that distcache has not made; give an empty directory, or a new "
            "name"
        )
    if not names:
        with closing_fd(open_directory(root)) as descriptor:
            set_mode(descriptor, 0o700)
        _mark(marker)
    _require_private(root)
    _require_mark(marker)
    for name in PARTS:
        (root / name).mkdir(mode=0o700, exist_ok=True)
        _require_own(root / name)
    return Store(root)


def existing_store(root: Path) -> Store | None:
    """Return the store at a path; None if nothing is there.

    Raises
    ------
    DistcacheError
        If something else is there, or a store that others may have written to.
    """
    if not os.path.lexists(root):
        return None
    _require_own(root)
    if not os.path.lexists(root / MARKER):
        if not os.listdir(root):
            return None
        raise DistcacheError(f"{root}: is not a store of distcache")
    _require_private(root)
    _require_mark(root / MARKER)
    for name in PARTS:
        if os.path.lexists(root / name):
            _require_own(root / name)
    return Store(root)


def _mark(marker: Path) -> None:
    with closing_fd(
        os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    ) as descriptor:
        os.write(descriptor, MARK)


def _require_mark(marker: Path) -> None:
    found = os.lstat(marker)
    # Empty: another process creates the same store at this moment.
    if not stat.S_ISREG(found.st_mode) or marker.read_bytes() not in (MARK, b""):
        raise DistcacheError(f"{marker}: is not the marker of a store of this version")


def _require_own(path: Path) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise DistcacheError(f"{path}: is a link; give the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise DistcacheError(f"{path}: is not a directory")
    if found.st_uid != os.geteuid():
        raise DistcacheError(
            f"{path}: belongs to user {found.st_uid}, not to {os.geteuid()}; choose another "
            "directory"
        )


def _require_private(root: Path) -> None:
    mode = stat.S_IMODE(os.lstat(root).st_mode)
    if mode & 0o077:
        raise DistcacheError(
            f"{root}: has mode {mode:04o}, so others may have changed it; look at it, then "
            f"chmod 700 {root}"
        )


class Space(msgspec.Struct, frozen=True):
    """The space of a filesystem."""

    # bytes that this user may still write; where they are memory, not more than is available
    free: int
    in_memory: bool  # whether its files are held in memory


def space_at(directory: Path) -> Space:
    """Return the space of the filesystem that holds a directory."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    in_memory = filesystem_type(directory) in MEMORY_BACKED
    if in_memory:
        memory = _available_memory()
        free = min(free, memory) if found.f_blocks else memory  # ramfs counts no blocks
    elif not found.f_blocks:
        free = UNKNOWN
    return Space(free, in_memory)


def filesystem_type(directory: Path, mounts: str | None = None) -> str:
    """Return the type of the filesystem of a directory, empty if unknown.

    Parameters
    ----------
    directory : Path
        Any.
    mounts : str or None
        The text of ``/proc/self/mounts``.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    real = os.path.realpath(directory)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        point = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def allocated(path: Path) -> int:
    """Return the bytes of a file on its disk; 0 if it does not exist."""
    try:
        return 512 * os.lstat(path).st_blocks
    except FileNotFoundError:
        return 0


def require_space(directory: Path, needed: int, spare: int) -> None:
    """Require free space for some bytes, and a reserve beyond them.

    Raises
    ------
    NoSpace
        With the numbers.
    """
    space = space_at(directory)
    if needed > 0 and needed + spare > space.free:
        keep = f" and {spare} are to stay free" if spare else ""
        kind = " (in memory)" if space.in_memory else ""
        raise NoSpace(
            f"{directory}: {needed} bytes are needed{keep}, {space.free} are free{kind}; free "
            "space with `distcache local gc`, or choose another directory with --store"
        )


def reserve(descriptor: int, size: int, path: Path) -> None:
    """Set the length of a file and allocate its blocks, if the filesystem supports that.

    Raises
    ------
    NoSpace
        If there is not enough.
    """
    try:
        if size > 0:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise NoSpace(
                f"{path}: cannot be given {size} bytes: {os.strerror(error.errno or 0)}"
            ) from error
    os.ftruncate(descriptor, size)
