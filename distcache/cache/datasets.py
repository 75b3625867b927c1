"""The HDF5 datasets of a cache, for those who do not need HDF5 itself."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from distcache.cache.format import TABLES

__all__ = ["DatasetPlace"]


class DatasetPlace(msgspec.Struct, frozen=True):
    """A dataset's group and name, dtype, shape and wanted byte offset."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def type(self) -> np.dtype[Any]:
        """The dtype; tables have one of their own."""
        return TABLES[self.name] if self.group == "tables" else np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.type.itemsize * math.prod(self.shape)
