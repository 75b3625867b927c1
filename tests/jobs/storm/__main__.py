"""Jobs at random on the same files, killed and misled; what is left must always be right.

python -m tests.jobs.storm MINUTES [SEED]
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.jobs.jobs import published
from tests.jobs.storm.jobs import KINDS, LIMIT, MADE, Job, World
from tests.support.processes import DISTCACHE, clean_environment

MOST = 4  # jobs at a time


def main() -> None:
    """Storm, and say what was found."""
    minutes = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbelow(1 << 31)
    print(f"storm: {minutes:g} minutes, seed {seed}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="storm-"))
    root.chmod(0o755)
    world = World(root)
    chance, ended, rounds = random.Random(seed), Counter[str](), 0
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        rounds += 1
        if wrong := one_round(world, chance, ended):
            sys.exit(f"storm: seed {seed}, round {rounds}; the files are in {root}\n{wrong}")
    shutil.rmtree(root)
    told = ", ".join(f"{count} of {kind}" for kind, count in sorted(ended.items()))
    print(f"storm: {rounds} rounds; jobs: {told}; all is right")


def one_round(world: World, chance: random.Random, ended: Counter[str]) -> str | None:
    """Start jobs one after the other, until all have ended; say what is wrong."""
    users = os.geteuid() == 0
    to_start = [chance.choice(KINDS) for _ in range(chance.randrange(2, 9))]
    if not world.cache.exists():  # nothing is localized or read before it is there
        to_start = [kind for kind in to_start if kind != "localize"]
        to_start = [kind if kind != "load" else "build" for kind in to_start]
    running: list[Job] = []
    wrong = None
    while (to_start or running) and wrong is None:
        if to_start and len(running) < MOST:
            running.append(Job(world, to_start.pop(), chance, users=users))
        time.sleep(chance.uniform(0, 0.5))
        for job in running:
            job.disturb()
            if time.monotonic() - job.started > LIMIT:
                wrong = f"{job.name}: has not ended:\n{job.output.read_text()[-2000:]}"
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            ended[job.kind] += 1
            wrong = wrong or job.end() or wrong_bytes(world)
    for job in running:
        job.process.kill()
    return wrong or settle(world, chance)


def wrong_bytes(world: World) -> str | None:
    """Say which finished file is not what a job alone makes."""
    for kind, right in world.right.items():
        for name, content in published(kind, world.directory(kind)).items():
            if right[name] != content:
                return f"{world.directory(kind) / name}: has other bytes than that of a job alone"
    return None


def settle(world: World, chance: random.Random) -> str | None:
    """After a round: undisturbed jobs work, nothing hidden stays; damage is noticed; restart."""
    for kind in (*MADE, "localize"):
        if wrong := undisturbed(world, kind):
            return wrong
    if wrong := wrong_bytes(world):
        return wrong
    ours = [path for path in world.shared.rglob(".*") if path.stat().st_uid == os.geteuid()]
    if ours:
        return f"{ours}: are left, though jobs of their names have ended well"
    if chance.random() < 0.5 and (wrong := flip(world, chance)):
        return wrong
    if chance.random() < 0.5:
        for path in world.shared.glob("*/*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return None


def undisturbed(world: World, kind: str) -> str | None:
    """Run a job alone, and say how it failed."""
    done = subprocess.run(
        world.words(kind),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode != 0:
        return f"{kind}, undisturbed: exit code {done.returncode}:\n{done.stderr}"
    return None


def flip(world: World, chance: random.Random) -> str | None:
    """Flip a byte of the local copy: it is noticed, and repaired by the next `localize`."""
    copy = chance.choice(sorted((world.local / "caches").glob("*.h5")))
    content = bytearray(copy.read_bytes())
    place = chance.randrange(len(content))
    content[place] ^= 1 << chance.randrange(8)
    mode = copy.stat().st_mode
    copy.chmod(0o600)
    with copy.open("r+b") as stream:
        stream.seek(place)
        stream.write(content[place : place + 1])
    copy.chmod(mode)
    words = [DISTCACHE, "local", "verify", "--store", str(world.local)]
    found = subprocess.run(words, env=clean_environment(), capture_output=True, check=False)
    if found.returncode == 0:
        return f"{copy}: byte {place} was flipped, and `local verify` has not noticed"
    if wrong := undisturbed(world, "localize"):
        return wrong
    if copy.exists() and copy.read_bytes() != world.right["build"][world.cache.name]:
        return f"{copy}: byte {place} was flipped, and `localize` has not repaired it"
    return None


if __name__ == "__main__":
    main()
