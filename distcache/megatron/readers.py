"""Which nodes of a training job read data, by the layout of its ranks: pure.

Megatron-LM builds datasets on ranks of the first tensor-parallel rank in the first and the last
pipeline stage (`is_dataset_built_on_rank`); its default order of ranks is tp-cp-ep-dp-pp.
"""

from __future__ import annotations

import re

import msgspec

from distcache.errors import ConfigError


class Readers(msgspec.Struct, frozen=True):
    """The layout of a job."""

    # sizes of tensor, context and pipeline parallelism
    tp: int = 1
    cp: int = 1
    pp: int = 1
    gpus: int = 8  # ranks of a node


def parse_readers(text: str) -> Readers:
    """Parse a layout such as ``tp=8,pp=4,gpus=8``; what is left out is 1, and 8 ranks of a node.

    Raises
    ------
    ConfigError
        If it has another form.
    """
    fields = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(tp|cp|pp|gpus)\s*=\s*([1-9]\d{0,6})\s*", part)
        if found is None:
            raise ConfigError(f"--readers {text!r}: expected for example tp=8,pp=4,gpus=8")
        fields[found[1]] = int(found[2])
    return Readers(**fields)


def reading_nodes(layout: Readers, nodes: int) -> frozenset[int]:
    """Return the nodes with a rank that reads data.

    Parameters
    ----------
    layout : Readers
        Layout of the job.
    nodes : int
        Number of nodes, in the launcher's order, which is that of the ranks.

    Raises
    ------
    ConfigError
        If the ranks of so many nodes cannot be laid out so.
    """
    world, model = nodes * layout.gpus, layout.tp * layout.cp * layout.pp
    if world % model:
        raise ConfigError(
            f"--readers: {nodes} nodes of {layout.gpus} ranks are {world}, no multiple of tp, cp "
            f"and pp together, {model}"
        )
    stage = world // layout.pp  # ranks of a pipeline stage, which follow one another
    return frozenset(
        rank // layout.gpus
        for rank in range(world)
        if rank % layout.tp == 0 and rank // stage in (0, layout.pp - 1)
    )
