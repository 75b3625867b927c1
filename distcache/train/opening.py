"""Open a cache for training: the node's ready copy if there is one, else the shared file."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec

from distcache.errors import ConfigError, DistcacheError, SharedFileWarning
from distcache.node.place import local_directory
from distcache.train.location import Location, locate, open_location
from distcache.train.options import SampleOptions

if TYPE_CHECKING:
    from distcache.train.dataset import CachedDataset

__all__ = ["TrainingCache", "open_cache"]

logger = logging.getLogger(__name__)


class TrainingCache:
    """A cache from which a process trains; made by `open_cache`.

    Attributes
    ----------
    location : Location
        Where it is read.
    key : str
        What is in it.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._opened = open_location(location)
        self.key = self._opened.cache.key

    @property
    def is_local(self) -> bool:
        """Whether the node's copy is read, and not the shared file."""
        return self._opened.is_local

    @property
    def path(self) -> Path:
        """The file that is read."""
        return self._opened.cache.path

    @property
    def splits(self) -> list[str]:
        """The splits that have samples."""
        splits = self._opened.cache.table("members")["split"].tolist()
        return [split.decode("ascii") for split in dict.fromkeys(splits)]

    def __repr__(self) -> str:
        kind = "local copy" if self.is_local else "shared file"
        return f"<cache {self.key[:16]}: {kind} {self.path} ({self.location.reason})>"

    def dataset(self, split: str, number: int | None = None, **options: Any) -> CachedDataset:
        """Return the samples of a split as a torch map-style dataset.

        Parameters
        ----------
        split : str
            "train", "valid" or "test".
        number : int or None
            Which of several validation sets; needed where there are several.
        **options
            The fields of `SampleOptions`, for example ``eod=0, reset_position_ids=True``.

        Raises
        ------
        ConfigError
            If there is no such split or option.
        """
        from distcache.train.dataset import CachedDataset, dataset_count  # noqa: PLC0415

        try:
            chosen = msgspec.convert(options, SampleOptions)
        except msgspec.ValidationError as error:
            raise ConfigError(f"dataset({split!r}): {error}") from error
        if type(split) is not str or type(number) not in (int, NoneType):
            raise ConfigError(
                f"dataset({split!r}, {number!r}): expected the name of a split, then a number"
            )
        count = dataset_count(self._opened, split)
        if count == 0:
            raise ConfigError(f"{self.path}: has splits {', '.join(self.splits)}, not {split!r}")
        if count > 1 and number is None:
            raise ConfigError(
                f"{self.path}: split {split!r} has {count} datasets; say which with number="
            )
        if number is not None and not 0 <= number < count:
            raise ConfigError(
                f"{self.path}: number is {number}, but split {split!r} has {count} dataset(s), "
                "counted from 0"
            )
        return CachedDataset(self.location, split, chosen, number or 0, self._opened)


def open_cache(path: str | Path, local: str | Path | None = None) -> TrainingCache:
    """Open a cache for training, at once: nothing is built or waited for.

    Which file is read is said by the cache's ``repr``; where this node has a directory for copies,
    but none of this cache, a `SharedFileWarning` says why.

    Parameters
    ----------
    path : path
        The shared cache, as `distcache build` printed it.
    local : path or None
        This node's store; by default where `distcache localize` puts it.

    Returns
    -------
    TrainingCache
        Of this node's ready copy, if there is one; of the shared file otherwise.

    Raises
    ------
    NotReady
        If there is neither; `distcache.wait` waits for a build.
    CacheCorrupt
        If the file is not a whole cache.
    """
    for name, value in (("path", path), ("local", local)):
        if not isinstance(value, str | os.PathLike) and (name == "path" or value is not None):
            raise ConfigError(f"{name} is {value!r}, expected a path")
    root = local_directory(local, os.environ)
    try:
        location = locate(path, root)
        if location.name:
            return _opened(location)
        reason = location.reason
    except DistcacheError as error:
        reason = str(error)
    cache = _opened(Location(os.path.abspath(path), "", "", os.getcwd(), reason))  # noqa: PTH109
    if root is not None:
        warnings.warn(
            f"{path} is read from the shared filesystem: {reason}", SharedFileWarning, stacklevel=2
        )
    return cache


def _opened(location: Location) -> TrainingCache:
    cache = TrainingCache(location)
    logger.info("reading %r", cache)
    return cache
