"""The two arrays of a blend, in chunks."""

from __future__ import annotations

import numpy as np

from distcache.build.data_file import ArrayWriter, DataFile
from distcache.kernels import Blender
from distcache.plan.costs import CHUNK_BYTES
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import BlendPlan

__all__ = ["BlendWriters", "build_blend", "new_blender", "write_steps"]

BlendWriters = dict[str, ArrayWriter]
"""Of the dataset index and the dataset sample index, by name."""

# A multiple of a leaf for the narrower of the two arrays.
STEPS = CHUNK_BYTES // 8


def new_blender(blend: BlendPlan) -> Blender:
    """Return a blender before the first step of a blend."""
    if blend.exhaustive:
        return Blender.exhaustive(np.array(blend.sizes, np.int64))
    return Blender.by_weight(np.array(blend.weights, np.float64))


def build_blend(blend: BlendPlan, places: dict[str, ArrayPlace], file: DataFile) -> dict[str, str]:
    """Build and write a blend.

    Parameters
    ----------
    blend : BlendPlan
        What to build.
    places : dict of str to ArrayPlace
        Where to write each array.
    file : DataFile
        The unfinished cache.

    Returns
    -------
    dict of str to str
        The digest of each array.
    """
    writers = write_steps(new_blender(blend), range(blend.size), places, file)
    return {name: writer.finish() for name, writer in writers.items()}


def write_steps(
    blender: Blender, steps: range, places: dict[str, ArrayPlace], file: DataFile
) -> BlendWriters:
    """Take steps of a blend and write them.

    Parameters
    ----------
    blender : Blender
        Before the first of the steps; left behind the last.
    steps : range
        Whose first is at the start of a leaf in both arrays.
    places : dict of str to ArrayPlace
        Where each array lies.
    file : DataFile
        The unfinished cache.

    Returns
    -------
    BlendWriters
        With the leaf digests of what was written.
    """
    writers = {
        name: ArrayWriter(file, place, steps.start * np.dtype(place.dtype).itemsize)
        for name, place in places.items()
    }
    room = min(STEPS, len(steps))
    corpora, samples = np.empty(room, np.int16), np.empty(room, np.int64)
    for begin in range(0, len(steps), STEPS):
        count = min(STEPS, len(steps) - begin)
        blender.next(corpora[:count], samples[:count])
        writers["dataset_index"].append(corpora[:count])
        writers["dataset_sample_index"].append(samples[:count])
    return writers
