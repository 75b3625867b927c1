"""What a training script opens: a cache, its splits, and what is in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec

from distcache.cache import Cache
from distcache.cache.split_members import dataset_count
from distcache.errors import ConfigError
from distcache.extras import needing
from distcache.storage.units import plain_number
from distcache.train.open_files import CacheHandle, OpenFiles, open_files
from distcache.train.summary import CorpusUse, Summary, corpora_of, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from distcache.corpus.mds.row import Row
    from distcache.train.dataset import CachedDataset
    from distcache.train.rows import RowDataset
    from distcache.train.sample_arrays import NumpyDataset, SampleFields, SampleOptions

logger = logging.getLogger(__name__)


class ShardWaits(msgspec.Struct, frozen=True):
    """How this process has waited for shards, and other data that the node's fetcher reads.

    Attributes
    ----------
    count : int
        Number of readings that took longer than a tenth of a second.
    seconds : float
        Time of these readings.
    """

    count: int
    seconds: float


class OpenCache:
    """An open cache; made by `open_cache`.

    ``print(cache)`` and a notebook show what is in it.

    Attributes
    ----------
    handle : CacheHandle
        Handle with which another process opens it.
    cache : Cache
        Tables and arrays of the cache, mapped.
    """

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self.handle: CacheHandle = files.handle
        self.cache: Cache = files.cache

    @property
    def key(self) -> str:
        """The identity of everything in the cache."""
        return self.cache.key

    @property
    def is_local(self) -> bool:
        """Whether the node's copy is read, and not the shared file."""
        return self._files.is_local

    @property
    def path(self) -> Path:
        """The file that is read."""
        return self.cache.path

    @property
    def splits(self) -> list[str]:
        """The splits that have samples."""
        return self.cache.splits

    @property
    def corpora(self) -> list[CorpusUse]:
        """Samples, passes and tokens that the cache has of each corpus, by split."""
        return corpora_of(self.cache)

    @property
    def shard_waits(self) -> ShardWaits:
        """How often, and how long, this process has waited for the node's fetcher."""
        client = self._files.fetch_client
        return ShardWaits(0, 0.0) if client is None else ShardWaits(client.waits, client.seconds)

    def summary(self) -> Summary:
        """Return what is in the cache, as text for ``print`` and as a table for notebooks."""
        return summary_of(self._files, repr(self))

    def __repr__(self) -> str:
        kind = "local copy" if self.is_local else "shared file"
        return f"<cache {self.key[:16]}: {kind} {self.path} ({self.handle.reason})>"

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def dataset_count(self, split: str) -> int:
        """Return how many datasets a split has: one, or one for each validation set, or none."""
        return dataset_count(self.cache, split)

    def dataset(
        self, split: str, number: int | None = None, **options: Unpack[SampleFields]
    ) -> CachedDataset:
        """Return the samples of a split as a torch map-style dataset.

        Parameters
        ----------
        split : str
            "train", "valid" or "test".
        number : int or None
            Number of the validation set; needed where there are several.
        **options
            The fields of `SampleOptions`, for example ``eod=0, reset_position_ids=True``.

        Raises
        ------
        ConfigError
            If there is no such split or option.
        """
        with needing("dataset()"):
            from distcache.train.dataset import CachedDataset  # noqa: PLC0415

        chosen = self._options_of(split, options, "dataset")
        found = self._number_of(split, number, "dataset")
        return CachedDataset(self.handle, split, chosen, found, self._files)

    def numpy_dataset(
        self, split: str, number: int | None = None, **options: Unpack[SampleFields]
    ) -> NumpyDataset:
        """Return the samples of a split as NumPy arrays, for frameworks other than torch.

        Parameters
        ----------
        split : str
            "train", "valid" or "test".
        number : int or None
            Number of the validation set; needed where there are several.
        **options
            The fields of `SampleOptions`, but for those of attention masks.

        Raises
        ------
        ConfigError
            If there is no such split or option.
        """
        from distcache.train.sample_arrays import NumpyDataset  # noqa: PLC0415

        chosen = self._options_of(split, options, "numpy_dataset")
        if chosen.create_attention_mask or chosen.reset_attention_mask:
            raise ConfigError(
                "create_attention_mask, reset_attention_mask: numpy_dataset() makes no attention "
                "masks; inter_document_masking gives the bounds of documents"
            )
        found = self._number_of(split, number, "numpy_dataset")
        return NumpyDataset(self.handle, split, chosen, found, self._files)

    def _options_of(self, split: str, options: SampleFields, asked: str) -> SampleOptions:
        """Return how samples are made.

        Raises
        ------
        ConfigError
            If there is no such option.
        """
        from distcache.train.sample_arrays import SampleOptions  # noqa: PLC0415

        try:
            plain = {name: plain_number(value) for name, value in options.items()}
            return msgspec.convert(plain, SampleOptions)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{asked}({split!r}): {error}") from error

    def rows(
        self,
        split: str,
        number: int | None = None,
        map: Callable[[Row], Any] | None = None,  # noqa: A002  as elsewhere
    ) -> RowDataset:
        """Return the rows of a split as a map-style dataset.

        Parameters
        ----------
        split : str
            "train", "valid" or "test".
        number : int or None
            Number of the validation set; needed where there are several.
        map : callable or None
            Called with each row, where it is read: in the workers of a ``DataLoader``.

        Raises
        ------
        ConfigError
            If there is no such split.
        """
        with needing("rows()"):
            from distcache.train.rows import RowDataset  # noqa: PLC0415

        return RowDataset(
            self.handle, split, self._number_of(split, number, "rows"), map, self._files
        )

    def _number_of(self, split: str, number: int | None, asked: str) -> int:
        """Return which dataset of a split is meant.

        Raises
        ------
        ConfigError
            If there is no such one.
        """
        number = plain_number(number)
        if type(split) is not str or type(number) not in (int, NoneType):
            raise ConfigError(
                f"{asked}({split!r}, {number!r}): expected the name of a split, then a number"
            )
        count = self.dataset_count(split) if split in self.splits else 0
        if count == 0:
            raise ConfigError(f"{self.path}: has splits {', '.join(self.splits)}, not {split!r}")
        if count > 1 and number is None:
            raise ConfigError(
                f"{self.path}: split {split!r} has {count} datasets; say which with number="
            )
        if number is not None and not 0 <= number < count:
            raise ConfigError(
                f"{self.path}: number is {number}, but split {split!r} has {count} datasets, "
                "counted from 0"
            )
        return number or 0


def open_cache(
    path: str | Path,
    local: str | Path | None = None,
    prefixes: Mapping[str, str] | None = None,
) -> OpenCache:
    """Open a cache for training. Opening never builds, and never waits.

    The cache's ``repr`` says which file is read. If a store is named, by `local` or the environment
    (DISTCACHE_LOCAL_DIR, SLURM_TMPDIR, TMPDIR), but has no usable copy of this cache, a
    `SharedFileWarning` says why.

    Parameters
    ----------
    path : path
        The shared cache, as `distcache build` printed it, or its URL, for which only this
        node's copy is opened.
    local : path or None
        This node's store; by default where `distcache localize` puts it.
    prefixes : mapping of str to str, or None
        Directories of corpora at the time of the build, and now: ``{"/old/data":
        "/new/data"}``. By default from the environment variable DISTCACHE_PREFIX:
        ``FROM=TO``, with commas between pairs.

    Returns
    -------
    OpenCache
        This node's ready copy, if there is one; the shared file otherwise.

    Raises
    ------
    NotReady
        If there is neither; `distcache.wait` waits for a build.
    CacheCorrupt
        If the file is not a whole cache.
    """
    opened = OpenCache(open_files(path, local, prefixes))
    logger.info("reading %r", opened)
    return opened
