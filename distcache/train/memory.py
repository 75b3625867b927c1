"""Memory for batches that is used again when nobody holds the batch any more.

Memory that is touched for the first time costs more than filling it. What a batch took goes to the
next one of its size, unless that is there already. In a `DataLoader`'s worker a batch is made where
the training process will read it, in shared memory, so that it need not be copied there.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

__all__ = ["BatchMemory"]

KEPT: Final = 4  # batches: as many as a loop that prefetches drops at a time
LINE: Final = 64  # bytes
LARGE: Final = 1 << 20  # bytes: less is used again by the allocator

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class BatchMemory:
    """Makes the tensors of batches."""

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=KEPT)

    def tensors(self, shapes: Shapes, *, batch: bool) -> dict[str, torch.Tensor]:
        """Return tensors that are not filled; those of a large batch share one storage.

        Parameters
        ----------
        shapes : mapping of str to (tuple of int, torch.dtype)
            Of each tensor.
        batch : bool
            Whether they go to the training process as they are: what a worker puts together from
            single samples is copied, and each piece of shared memory takes a descriptor.

        Returns
        -------
        dict of str to Tensor
            By the same names.
        """
        sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in shapes.items()}
        total = sum(-(-size // LINE) * LINE for size in sizes.values())
        shared = batch and get_worker_info() is not None
        if total < LARGE and not shared:
            return {
                name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()
            }
        memory = _shared(total) if shared else self._take(total)
        tensors, begin = {}, 0
        for name, (shape, dtype) in shapes.items():
            piece = memory[begin : begin + sizes[name]]
            tensors[name] = piece.view(dtype).view(shape)
            begin += -(-sizes[name] // LINE) * LINE
        return tensors

    def _take(self, size: int) -> torch.Tensor:
        try:
            memory = self._free.pop()  # in one step: another thread may be at it
        except IndexError:
            memory = np.empty(0, np.uint8)
        if memory.size != size + LINE:
            memory = np.empty(size + LINE, np.uint8)
        # Tensors hold the view, whose end says that they are all gone.
        view = np.frombuffer(memory, np.uint8, size, -memory.ctypes.data % LINE)
        weakref.finalize(view, self._free.append, memory).atexit = False
        return torch.from_numpy(view)


def _shared(size: int) -> torch.Tensor:
    """Return shared memory, as torch's own `default_collate` makes it in a worker."""
    # There is no public name for it.
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))
