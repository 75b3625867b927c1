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

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from distcache.cache.format import Header
from distcache.corpus import idx_path
from distcache.errors import ConfigError, DistcacheError
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
PARTS: Final = ("caches", "corpora", "megatron", "ahead", "objects")


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
                    path.unlink(missing_ok=True)  # another job may remove its own probe


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
            f"{root}: has mode {mode:04o}, so others may have changed it; inspect it, then "
            f"chmod 700 {root}"
        )
