"""Batches: their memory, which is reused, their rows, and their attention masks."""

from __future__ import annotations

import functools
import math
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

KEPT: Final = 4  # free batches; a prefetching loop drops as many at a time
LINE: Final = 64  # bytes
LARGE: Final = 1 << 20  # bytes; the allocator reuses smaller memory
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class BatchRow(Mapping[str, Any]):
    """One sample of a batch: views of its tensors.

    Parameters
    ----------
    batch : dict of str to Tensor
        The whole batch, a row per sample.
    row : int
        Number of the row.
    """

    __slots__ = ("batch", "row")

    def __init__(self, batch: dict[str, torch.Tensor], row: int) -> None:
        self.batch = batch
        self.row = row

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.batch[name][self.row]

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch)

    def __len__(self) -> int:
        return len(self.batch)


def rows_of(batch: dict[str, torch.Tensor]) -> list[BatchRow]:
    """Return the samples of a batch."""
    return [BatchRow(batch, row) for row in range(len(next(iter(batch.values()))))]


def _collate(rows: Sequence[BatchRow], *, collate_fn_map: Any = None) -> dict[str, torch.Tensor]:
    """Return the batch of the rows if they are all of it in order; collate others as torch does."""
    del collate_fn_map
    batch = rows[0].batch
    whole = len(rows) == len(next(iter(batch.values())))
    if whole and all(row.batch is batch and row.row == i for i, row in enumerate(rows)):
        return batch
    collated: dict[str, torch.Tensor] = default_collate([dict(row) for row in rows])
    return collated


default_collate_fn_map[BatchRow] = _collate


@functools.lru_cache(maxsize=4)
def _causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def attention_masks(ends: torch.Tensor | None, rows: int, length: int) -> torch.Tensor:
    """Return the masks of a batch: true where a token may not attend.

    Parameters
    ----------
    ends : Tensor of uint8, shape (rows, length), or None
        Ends of documents, if tokens after an end may not attend to it or to anything
        before.
    rows, length : int
        The batch's shape.

    Returns
    -------
    Tensor of bool, shape (rows, 1, length, length)
        New memory.
    """
    if ends is None:
        return _causal(length).expand(rows, 1, length, length).clone()
    documents = ends.cumsum(1) - ends  # an end belongs to the document that it ends
    apart = documents[:, None, :, None] != documents[:, None, None, :]
    return apart.logical_or_(_causal(length))


class BatchLayout:
    """The tensors of a batch, and how they share one storage.

    Parameters
    ----------
    shapes : mapping of str to (tuple of int, torch.dtype)
        Shape and dtype of each tensor.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.places: dict[str, slice] = {}  # bytes of each tensor
        self.total = 0  # bytes of the storage
        for name, (shape, dtype) in shapes.items():
            size = math.prod(shape) * dtype.itemsize
            self.places[name] = slice(self.total, self.total + size)
            self.total += -(-size // LINE) * LINE


class BatchMemory:
    """Allocates the tensors of batches, and reuses their memory."""

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=KEPT)

    def tensors(self, layout: BatchLayout, *, batch: bool) -> dict[str, torch.Tensor]:
        """Return uninitialized tensors; those of a large batch share one storage.

        Parameters
        ----------
        layout : BatchLayout
            Names, shapes and dtypes of the tensors.
        batch : bool
            Whether a worker sends them to the training process as they are. Batches collated from
            single samples are copied, and each block of shared memory takes a descriptor.

        Returns
        -------
        dict of str to Tensor
            Tensors by the same names.
        """
        shapes = layout.shapes.items()
        shared = batch and get_worker_info() is not None
        if layout.total < LARGE and not shared:
            return {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes}
        memory = _shared(layout.total) if shared else self._take(layout.total)
        return {
            name: memory[layout.places[name]].view(dtype).view(shape)
            for name, (shape, dtype) in shapes
        }

    def _take(self, size: int) -> torch.Tensor:
        try:
            memory = self._free.pop()  # atomic: other threads may pop as well
        except IndexError:
            memory = np.empty(0, np.uint8)
        if memory.size != size + LINE:
            memory = np.empty(size + LINE, np.uint8)
        # Tensors hold the view; when it is finalized, all of them are gone.
        view = np.frombuffer(memory, np.uint8, size, -memory.ctypes.data % LINE)
        weakref.finalize(view, self._free.append, memory).atexit = False
        return torch.from_numpy(view)


def _shared(size: int) -> torch.Tensor:
    """Return shared memory, as torch's own `default_collate` makes it in a worker."""
    # Torch has no public function for it.
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))
