"""What is not Slurm: a real Grid Engine, and Slurm's emulation of PBS, run what is submitted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from distcache.builder.build_record import read_build_record
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import detach, run, stop
from tests.cluster.jobs import Story, command, environment, wait_for
from tests.support.corpora import write_corpora
from tests.support.large import write_large
from tests.support.processes import DISTCACHE
from tests.support.waiting import wait_until

PACKAGES = Path(__file__).parents[2] / "build" / "schedulers" / "gridengine"
INIT = Path(__file__).with_name("grid_engine.sh")
NAMESPACES = "--net --uts --mount --ipc --pid --fork --kill-child --mount-proc"


class GridEngine:
    """A master and an execution host of eight slots.

    Parameters
    ----------
    base : Path
        A directory of its own for all that it writes.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self._pid_file = base / "holder.pid"
        self.environment = {
            "SGE_ROOT": str(base / "cell"),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
            "PATH": os.environ["PATH"],
        }

    def start(self) -> None:
        """Start it, and wait until it takes jobs."""
        (self.base / "tmp").mkdir()
        (self.base / "tmp").chmod(0o1777)
        words = ["unshare", *NAMESPACES.split(), "bash", str(INIT), self.base, PACKAGES]
        detach([str(word) for word in words], self._pid_file, self.environment)
        wait_until((self.base / "up").exists, "Grid Engine", logs=[self.base / "log"])
        wait_until(lambda: "sgehost" in self.run("qstat", "-f"), "a queue", 60)

    def stop(self) -> None:
        """Stop all of it."""
        stop(self._pid_file, signal.SIGKILL)

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a command on the host, and return what it writes."""
        return run(*self.words(*command, variables=variables))

    def words(self, *command: str | Path, variables: Mapping[str, str] = {}) -> list[str]:
        """Return the words that run a command on the host."""
        holder = self._pid_file.read_text().strip()
        first = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0]
        given = {**self.environment, **variables}
        env = ["env", "-C", "/", *(f"{name}={value}" for name, value in given.items())]
        return [
            "nsenter",
            "-t",
            first,
            "-u",
            "-m",
            "-n",
            "-p",
            "-i",
            "-r",
            *env,
            *map(str, command),
        ]


LIMIT = 120.0
RANKS = "3"


@pytest.fixture(scope="module")
def engine() -> Iterator[GridEngine]:
    """A Grid Engine."""
    if not PACKAGES.exists():
        pytest.skip("scripts/grid_engine unpacks it")
    base = Path(tempfile.mkdtemp(prefix="distcache-sge-"))
    base.chmod(0o755)
    made = GridEngine(base)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(base, ignore_errors=True)


def small(directory: Path) -> Path:
    """Write a configuration of a small corpus."""
    (directory / "data").mkdir()
    prefix = write_corpora(directory / "data")["plain"]
    path = directory / "blend.json"
    path.write_text(json.dumps({"sequence_length": 32, "split": "9,1,0", "blend": [prefix]}))
    return path


def submitted(engine: GridEngine, *words: str | Path) -> dict[str, Any]:
    """Submit by distcache; the commands of Slurm are here, too, and would come first."""
    options = ["--scheduler", "sge", "--ntasks-per-node", RANKS, "--json"]
    found: dict[str, Any] = json.loads(engine.run(DISTCACHE, "submit", *options, *words))
    return found


def running(engine: GridEngine) -> list[str]:
    """Return the numbers of the jobs that have not ended."""
    return [line.split()[0] for line in engine.run("qstat").splitlines()[2:]]


def log_of(found: dict[str, Any]) -> str:
    """Return what a pre-job has written."""
    job = found["prejob"]["job"]
    return (Path(found["prejob"]["logs"]) / f"{job}.log").read_text()


def test_training_starts_after_the_prejob(engine: GridEngine, tmp_path: Path) -> None:
    """Ranks build, and training gets the cache's path and its arguments after them."""
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n#$ -S /bin/bash\n"
        f"#$ -o {tmp_path}/log -j y\n"
        f"{DISTCACHE} localize $DISTCACHE_CACHE --store {tmp_path}/store || exit\n"
        f"echo $DISTCACHE_CACHE $1 >{tmp_path}/out\n"
    )
    found = submitted(
        engine, small(tmp_path), "-o", tmp_path / "caches", "--name", "c", "--", script, "a b"
    )
    wait_until(lambda: not running(engine), "the jobs", LIMIT)
    cache = tmp_path / "caches" / "c.h5"
    assert cache.exists(), log_of(found)
    assert len(read_build_record(cache).ranks) == int(RANKS)
    assert (tmp_path / "out").read_text() == f"{cache} a b\n"


@pytest.mark.more
def test_training_does_not_follow_a_failure(engine: GridEngine, tmp_path: Path) -> None:
    """Grid Engine starts it all the same; it ends at once, since there is no cache."""
    config = small(tmp_path)
    script = tmp_path / "train.sh"
    lines = ["#!/bin/bash", "#$ -S /bin/bash", f"#$ -o {tmp_path}/log -j y"]
    script.write_text("\n".join([*lines, f"touch {tmp_path}/trained\n"]))
    found = submitted(
        engine, config, "-o", tmp_path / "caches", "--name", "c",
        "--directive=-h", "--", script,
    )  # fmt: skip
    path = tmp_path / "data" / "plain.idx"
    path.write_bytes(path.read_bytes()[:-1])
    engine.run("qrls", found["prejob"]["job"])
    wait_until(lambda: not running(engine), "the jobs", LIMIT)
    assert "plain.idx" in log_of(found)
    assert "c.h5: is not there; see the log" in (tmp_path / "log").read_text()
    assert not (tmp_path / "trained").exists()


def test_an_interrupted_prejob_starts_again(engine: GridEngine, tmp_path: Path) -> None:
    """At its soft limit the ranks end with 8, the script with 99, and the job resumes."""
    prefixes = [write_large(tmp_path / f"m{i}", 700_000 + i) for i in range(12)]
    fields = {
        "sequence_length": 24,
        "split": "98,1,1",
        "samples": {"train": 160 * 700_000, "valid": 1000, "test": 1000},
        "blend": [{"path": prefix, "weight": 1} for prefix in prefixes],
    }
    config = tmp_path / "blend.json"
    config.write_text(json.dumps(fields))
    found = submitted(engine, config, "-o", tmp_path / "caches", "--name", "c")
    job, logs = found["prejob"]["job"], Path(found["prejob"]["logs"])
    journals = tmp_path / "caches" / ".c.h5.building"
    # As soon as something is built, what its soft limit does: SIGUSR1 to all processes of the job.
    # One shell does both: the build may take no longer than starting another process takes here.
    built = f"find {journals} -name 'journal.*.jsonl' -size +0 | grep -q ."
    signal = f"pkill -USR1 -f 'job_script[s]/{job}|--name[ ]c '"  # and not to this shell
    engine.run("timeout", f"{LIMIT}", "bash", "-c", f"until {built}; do sleep 0.05; done; {signal}")
    wait_until(lambda: not running(engine), "the job", LIMIT, list(logs.glob("*.log")))
    said = log_of(found)
    assert "interrupted by SIGUSR1; run again to resume" in said
    assert "the job starts again, and resumes" in said
    assert (tmp_path / "caches" / "c.h5").exists(), said
    assert read_build_record(tmp_path / "caches" / "c.h5").resumed > 0


TORQUE = PACKAGES.parent / "torque" / "usr" / "bin"


def test_a_prejob_and_training(
    cluster: Cluster, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes, ranks, the limit and the dependency are understood."""
    monkeypatch.chdir(shared)  # where the emulation puts logs
    story = Story.small(shared)
    script = shared / "train.sh"
    lines = ["#!/bin/bash", "#PBS -l nodes=1", f"#PBS -o {shared}/train.log", "#PBS -j oe"]
    script.write_text("\n".join([*lines, f'echo "$DISTCACHE_CACHE $1" >{shared}/out\n']))
    env = environment(PATH=f"{TORQUE}:{os.environ['PATH']}")
    words = ["submit", story.config, "-o", story.caches, "--name", "c", "--scheduler", "pbs"]
    shape = ["--nodes", "2", "--ntasks-per-node", "2", "--time", "5", "--mem", "1G", "--json"]
    done = command(*words, *shape, "--", script, "a b", env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    prejob = found["prejob"]["job"].partition(".")[0]
    ended = wait_for(prejob, "COMPLETED", "FAILED", "CANCELLED")
    assert ended == "COMPLETED", "\n".join(path.read_text() for path in shared.glob("c-build*"))
    training = found["training"].partition(".")[0]
    assert wait_for(training, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED"
    assert (shared / "out").read_text() == f"{story.cache} a b\n"
    ranks = story.record().ranks
    assert len(ranks) == 4
    assert len({rank.host for rank in ranks}) == 2
    assert story.difference(tmp_path) == ""
