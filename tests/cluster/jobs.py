"""What the tests ask of the cluster: commands, jobs, and a build that is long enough to be hit."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distcache.builder.build_record import BuildRecord, read_build_record
from distcache.builder.job import Record
from distcache.storage.journal import read_journal
from tests.cluster.daemons import run
from tests.cluster.node import ETHERNET
from tests.support import here
from tests.support.corpora import write_corpora
from tests.support.large import write_large
from tests.support.processes import DISTCACHE, OPEN_MPI, clean_environment
from tests.support.waiting import wait_until

LIMIT = 240.0  # seconds
# Under Slurm's PMIx a rank was seen to get messages before MPI_Init had prepared it for any, at
# which Open MPI's own layers crash (open-mpi/ompi#12495); libfabric keeps them.
OPEN_MPI_BY_LIBFABRIC = {
    "OMPI_MCA_pml": "cm",
    "OMPI_MCA_mtl": "ofi",
    "OMPI_MCA_mtl_ofi_provider_include": "tcp",
}
SHAPE = ("--nodes", "3", "--ntasks-per-node", "2")


def environment(launcher: str = "mpich", **extra: str) -> dict[str, str]:
    """Return what commands and their jobs need: Slurm's configuration, and one of the MPIs."""
    found = {
        "SLURM_CONF": os.environ["SLURM_CONF"],
        "OMP_NUM_THREADS": "1",
        # MPI keeps off the filesystem's network, where the bytes of files are counted. The other
        # module of MPICH, UCX, exchanges long addresses, on which Slurm's pmi2 was seen to choke.
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": ETHERNET,
        "OMPI_MCA_btl_tcp_if_include": ETHERNET,
    }
    if launcher == "openmpi":
        found |= {**OPEN_MPI, **OPEN_MPI_BY_LIBFABRIC, "DISTCACHE_MPI": "pmix"}
    return clean_environment({**found, **extra})


def background(*words: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command of distcache and do not wait for it."""
    return subprocess.Popen(
        [DISTCACHE, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(env or environment()),
    )


def command(
    *words: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of distcache to its end."""
    process = background(*words, env=env)
    output, errors = process.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def field_of(job: str, name: str) -> str:
    """Return a field of what the controller says of a job, such as JobState or Restarts."""
    said = run("scontrol", "show", "job", "--oneliner", job)
    return dict(word.split("=", 1) for word in said.split() if "=" in word)[name]


def wait_for(job: str, *states: str, limit: float = LIMIT) -> str:
    """Wait until a job is in one of some states, and return which."""

    def arrived() -> bool:
        return field_of(job, "JobState") in states

    wait_until(arrived, f"job {job} to be {' or '.join(states)}", limit)
    return field_of(job, "JobState")


def recorded(directory: Path, name: str) -> set[int]:
    """Return the items that the journals of an unfinished cache name.

    None while its directory comes or goes: a network filesystem shows it before it can be listed.
    """
    try:
        journals = list(directory.glob(f".{name}.h5.building/journal.*.jsonl"))
    except FileNotFoundError:
        return set()
    return {record.item for path in journals for record in read_journal(path, Record)}


class Story:
    """Corpora and a configuration on the network filesystem.

    Parameters
    ----------
    directory : Path
        There.
    fields : dict
        Of the configuration.
    """

    def __init__(self, directory: Path, fields: dict[str, Any]) -> None:
        self.directory = directory
        self.caches = directory / "caches"
        self.cache = self.caches / "c.h5"
        self.config = directory / "blend.json"
        self.config.write_text(json.dumps(fields))
        self.fields = fields

    @classmethod
    def small(cls, directory: Path) -> Story:
        """Return one whose samples can all be read."""
        prefixes = write_corpora(directory)
        return cls(
            directory,
            {
                "sequence_length": 32,
                "split": "90,10,0",
                "samples": {"train": 4001, "valid": 100, "test": 0},
                "blend": [
                    {"path": prefixes["plain"], "weight": 0.5},
                    {"path": prefixes["third"], "weight": 0.3},
                    {"path": prefixes["holes"], "weight": 0.2},
                ],
                "tokenizer": {"class": "NullTokenizer"},
            },
        )

    @classmethod
    def long(cls, directory: Path, corpora: int = 12, sequences: int = 700_000) -> Story:
        """Return one that takes many seconds to build, in many steps."""
        prefixes = [write_large(directory / f"m{i}", sequences + i) for i in range(corpora)]
        return cls(
            directory,
            {
                "sequence_length": 24,
                "split": "98,1,1",
                "samples": {"train": 40 * corpora * sequences // 12, "valid": 1000, "test": 1000},
                "blend": [{"path": prefix, "weight": 1} for prefix in prefixes],
            },
        )

    def words(self, *more: object) -> list[object]:
        """Return the words that submit its pre-job."""
        return ["submit", self.config, "-o", self.caches, "--name", "c", *SHAPE, *more]

    def undisturbed(self, directory: Path) -> Path:
        """Return what one process builds of it elsewhere."""
        return Path(here.build(self.fields, directory).path)

    def difference(self, directory: Path) -> str:
        """Return where its cache differs from `undisturbed`, or nothing; its bytes are many."""
        built = np.fromfile(self.cache, np.uint8)
        other = np.fromfile(self.undisturbed(directory), np.uint8)
        if len(built) != len(other):
            return f"{len(built)} bytes, not {len(other)}"
        places = np.flatnonzero(built != other)
        if not len(places):
            return ""
        runs = np.split(places, np.flatnonzero(np.diff(places) > 64) + 1)
        return " ".join(f"{run[0]}-{run[-1] + 1}" for run in runs)

    def record(self) -> BuildRecord:
        """Return the build record of its cache."""
        return read_build_record(self.cache)

    def sbatch(self, script: Path, *words: object, options: Sequence[str] = ()) -> str:
        """Submit a batch script, and return the job's number."""
        log = f"--output={self.directory}/%j.log"
        command = ["sbatch", "--parsable", log, *options, script, *map(str, words)]
        return run(*command, environment=environment()).strip()

    def log(self, job: str) -> str:
        """Return what such a job wrote."""
        return (self.directory / f"{job}.log").read_text()

    def wait_for_records(self, count: int = 2) -> None:
        """Wait until a build is well under way."""

        def under_way() -> bool:
            assert not self.cache.exists(), "the build was over too soon"
            return len(recorded(self.caches, "c")) >= count

        wait_until(under_way, "records of what is built", LIMIT)
