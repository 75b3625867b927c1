"""The `sbcast` transport: Slurm's daemons pass the cache on, from node to node in a tree.

They write a new file on every node of the step, of which nothing is believed: each agent compares
every block with its digest, and what differs comes as with the `mpi` transport.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from distcache.errors import ConfigError, DistcacheError
from distcache.files import open_regular, passing_name
from distcache.node.landing import Landing, unit_matches
from distcache.node.wanted import CACHE, Wanted
from distcache.programs import run_program
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.communicator import Communicator
from distcache.timeouts import limits

__all__ = ["broadcast_cache", "require_sbcast", "run_sbcast"]

SLOWEST: Final = 10 << 20  # bytes a second that sbcast may take, beyond what it takes to begin


def require_sbcast(agents: Communicator, environment: Mapping[str, str]) -> None:
    """See that sbcast can reach exactly the nodes of these agents. Collective.

    Raises
    ------
    ConfigError
        On all agents, if there is none, or the agents are not those of a whole step.
    """

    def look() -> None:
        if shutil.which("sbcast") is None:
            raise ConfigError("--transport sbcast: there is no sbcast here; use mpi or copy")
        nodes = environment.get("SLURM_STEP_NUM_NODES", "")
        in_step = environment.get("SLURM_JOB_ID") and environment.get("SLURM_STEP_ID")
        if not in_step or nodes != str(agents.size):
            raise ConfigError(
                f"--transport sbcast: {agents.size} agents, but Slurm's step has {nodes or 'no'} "
                "nodes; start it with srun --mpi=... --ntasks-per-node=1, on all of them"
            )

    together(agents, look, "looking for sbcast")


def broadcast_cache(
    agents: Communicator,
    wanted: Wanted,
    landing: Landing,
    mine: Sequence[int],
    threads: int,
    environment: Mapping[str, str],
    advance: Callable[[float], None],
) -> tuple[list[int], int]:
    """Bring a cache that no node has anything of. Collective.

    Parameters
    ----------
    agents : Communicator
        One of each node of this step.
    wanted, landing : Wanted, Landing
        What, the same on all nodes and under the same paths, and where to.
    mine : sequence of int
        Units that this node needs.
    threads : int
        Units that are compared at a time.
    environment : mapping
        Of the agent's task.
    advance : callable
        Told of the bytes of every unit.

    Returns
    -------
    missing : list of int
        Units that this node still needs.
    read : int
        Bytes that this agent has read from the shared filesystem.

    Raises
    ------
    ConfigError
        If the stores have different paths.
    DistcacheError
        If sbcast fails; its file is gone then.
    """
    cache = wanted.files[CACHE]
    units = {number for number, unit in enumerate(wanted.units) if unit.file == CACHE}
    if not all(agents.gather_all(units <= set(mine), bool, "who needs all of the cache")):
        return list(mine), 0
    name = from_rank_0(agents, lambda: passing_name(cache.final).name, str, "naming the file")
    arriving = cache.final.with_name(name)
    paths = set(agents.gather_all(str(arriving), str, "the paths of the stores"))
    # The space that was reserved is what sbcast's file will take.
    together(agents, lambda: _make_room(cache.part, paths), "making room for sbcast")
    try:
        from_rank_0(agents, lambda: run_sbcast(cache.shared, arriving, environment), None, "sbcast")
        right = together(
            agents, lambda: _take(arriving, wanted, units, threads, advance), "comparing"
        )
        together(agents, lambda: landing.make(CACHE), "reserving space")
    finally:
        arriving.unlink(missing_ok=True)
    read = cache.size if agents.rank == 0 else 0
    return [number for number in mine if number not in right], read


def _make_room(part: Path, paths: Collection[str]) -> None:
    if len(paths) > 1:
        raise ConfigError("--transport sbcast: the nodes' stores have different paths")
    part.unlink()


def run_sbcast(source: str, target: Path, environment: Mapping[str, str]) -> None:
    """Let Slurm write a file on all nodes of this step.

    Raises
    ------
    DistcacheError
        In Slurm's words, if it fails.
    """
    step = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    limit = limits().stalled + os.stat(source).st_size / SLOWEST
    done = run_program(["sbcast", "--force", f"--jobid={step}", source, str(target)], limit)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise DistcacheError(f"sbcast {source}: {said}; use --transport mpi")


def _take(
    arriving: Path,
    wanted: Wanted,
    units: set[int],
    threads: int,
    advance: Callable[[float], None],
) -> frozenset[int]:
    """Make sbcast's file the unfinished cache, and return the units of it that are right."""
    cache = wanted.files[CACHE]
    descriptor = open_regular(arriving, follow=False)
    try:
        os.fchmod(descriptor, 0o600)  # Slurm gives it the mode of the source

        def compare(number: int) -> int | None:
            unit = wanted.units[number]
            if not unit_matches(descriptor, unit):
                return None
            advance(unit.size)
            return number

        with ThreadPoolExecutor(threads) as pool:
            found = frozenset(number for number in pool.map(compare, units) if number is not None)
        os.replace(arriving, cache.part)
        return found
    finally:
        os.close(descriptor)
