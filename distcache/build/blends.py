"""The two arrays of a blend, in chunks."""

from __future__ import annotations

import numpy as np

from distcache.build.data_file import ArrayWriter, DataFile
from distcache.kernels import Blender
from distcache.plan.costs import CHUNK_BYTES
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import BlendPlan

__all__ = ["build_blend"]

# A multiple of a leaf for the narrower of the two arrays.
STEPS = CHUNK_BYTES // 8


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
    if blend.exhaustive:
        blender = Blender.exhaustive(np.array(blend.sizes, np.int64))
    else:
        blender = Blender.by_weight(np.array(blend.weights, np.float64))
    corpora_writer = ArrayWriter(file, places["dataset_index"])
    samples_writer = ArrayWriter(file, places["dataset_sample_index"])
    room = min(STEPS, blend.size)
    corpus_room, sample_room = np.empty(room, np.int16), np.empty(room, np.int64)
    for begin in range(0, blend.size, STEPS):
        steps = min(STEPS, blend.size - begin)
        corpora, samples = corpus_room[:steps], sample_room[:steps]
        blender.next(corpora, samples)
        corpora_writer.append(corpora)
        samples_writer.append(samples)
    return {
        "dataset_index": corpora_writer.finish(),
        "dataset_sample_index": samples_writer.finish(),
    }
