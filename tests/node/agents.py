"""Localize in this process, and spoil the result of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distcache.node.localize import localize
from distcache.node.records import Localized, LocalizeOptions, NodeReport
from distcache.ranks.communicator import Communicator
from distcache.ranks.job_environment import NODE_NAME
from tests.support import here
from tests.support.threads import run_ranks


def run(cache: Path, root: Path, **options: Any) -> Localized:
    """Localize with one process."""
    return here.localize(cache, root, **options)


def run_on(nodes: int, cache: Path, root: Path, **options: Any) -> Localized:
    """Localize on some nodes, of which the first has this directory."""

    def work(world: Communicator) -> Localized:
        own = root if world.rank == 0 else root.with_name(f"{root.name}.{world.rank}")
        environment = {NODE_NAME: f"node{world.rank}"}
        wanted = LocalizeOptions(directory=str(own), **options)
        return localize(world, cache, wanted, environment=environment)

    if nodes == 1:
        return work(here.ALONE)
    outcomes, aborted = run_ranks(nodes, work)
    assert not aborted
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    done: Localized = outcomes[0]
    return done


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
