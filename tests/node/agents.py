"""Localize in this process, and spoil the result of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distcache.node.localize import localize
from distcache.node.records import Localized, LocalizeOptions, NodeReport
from distcache.ranks.communicator import SerialCommunicator


def run(cache: Path, root: Path, **options: Any) -> Localized:
    """Localize with one process."""
    wanted = LocalizeOptions(directory=str(root), **options)
    return localize(SerialCommunicator(), cache, wanted)


def only(done: Localized) -> NodeReport:
    """Return the one node's report."""
    assert len(done.nodes) == 1
    return done.nodes[0]


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    path.chmod(0o644)
    with open(path, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 0x10]))
