"""Slurm: ranks start by srun with the plugin of their MPI library.

By the manual pages of Slurm 22.05, and run with it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from distcache.errors import ConfigError
from distcache.launch.schedulers.lsf import LSF
from distcache.launch.schedulers.pbs import PBS
from distcache.launch.schedulers.scheduler import NOT_EVERYWHERE, Scheduler, Shape

OPTION: Final = re.compile(r"(?P<name>--[a-z][a-z0-9-]*)(=(?P<value>.*))?")
# Options of the job's files, by which it is followed.
OWN_DIRECTIVES: Final = "--array --chdir --error --input --output --parsable --wrap"
# Variables that are not named after an option which a script may have.
VARIABLES: Final = {"TIME": "TIMELIMIT", "MEM": "MEM_PER_NODE"}
ALWAYS: Final = ("ARRAY_INX", "ERROR", "EXPORT", "MEM_PER_CPU", "MEM_PER_GPU", "NO_REQUEUE", "WAIT")


def _directives(shape: Shape) -> Iterator[str]:
    yield f"--job-name={shape.name}"
    yield f"--nodes={shape.nodes}"
    yield f"--ntasks-per-node={shape.tasks}"
    yield f"--cpus-per-task={shape.cpus}"
    yield f"--time={shape.minutes}"
    yield f"--signal=USR1@{shape.signal_delay}"
    yield "--requeue"
    yield "--open-mode=append"
    yield f"--output={shlex.quote(f'{shape.logs}/%j.log')}"
    if shape.memory is not None:
        yield f"--mem={shape.memory}"
    if shape.queue is not None:
        yield f"--partition={shlex.quote(shape.queue)}"
    if shape.account is not None:
        yield f"--account={shlex.quote(shape.account)}"
    if shape.qos is not None:
        yield f"--qos={shlex.quote(shape.qos)}"
    if shape.constraint is not None:
        yield f"--constraint={shlex.quote(shape.constraint)}"


def _launch(shape: Shape) -> Sequence[str]:
    # Since Slurm 22.05 a step does not have the CPUs per task of its job unless it asks for them.
    own = (f"--mpi={shape.mpi}", f"--cpus-per-task={shape.cpus}", "--kill-on-bad-exit=1")
    return ("srun", *own, *shape.srun)


def _read_directive(text: str) -> str:
    """Return an option with its value quoted; sbatch cuts what is not at a blank."""
    found = OPTION.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--directive {text!r}: expected an option of sbatch, such as --gres=gpu:1"
        )
    if found["name"] in OWN_DIRECTIVES.split():
        raise ConfigError(f"--directive {text!r}: distcache finds the job's files by this one")
    return f"{found['name']}={shlex.quote(found['value'])}" if found["value"] else text


def _after(job: str, own: str) -> Sequence[str]:
    if "?" in own:
        raise ConfigError(
            f"{own!r}: Slurm cannot wait for one of these jobs and also for the pre-job"
        )
    joined = f"afterok:{job},{own}" if own else f"afterok:{job}"
    return (f"--dependency={joined}", "--kill-on-invalid-dep=yes")


def _overruling(script: str) -> Iterator[str]:
    """Yield the variables that sbatch prefers to the options in a script."""
    words = re.findall(r"(?m)^#SBATCH --([\w-]+)", script)
    names = [word.upper().replace("-", "_") for word in words]
    for name in (*ALWAYS, *(VARIABLES.get(name, name) for name in names)):
        yield f"SBATCH_{name}"


SLURM = Scheduler(
    title="Slurm",
    prefix="#SBATCH",
    directives=_directives,
    launch=_launch,
    submit=("sbatch", "--parsable"),
    after=_after,
    job_pattern=r"^(\d+)(;.*)?$",
    requeue='scontrol requeue "$SLURM_JOB_ID" && sleep 60',
    number="SLURM_JOB_ID",
    takes=NOT_EVERYWHERE,
    replaced={
        "--mem-per-cpu": "--mem",
        "--mem-per-gpu": "--mem",
        "--ntasks": "--ntasks-per-node",
        "--no-requeue": "--requeue",
    },
    read_directive=_read_directive,
    misread="%\\\"'",
    overruling=_overruling,
    also_reads=(PBS, LSF),  # unless --ignore-pbs (sbatch(1))
    waiting=r"\0(?:--dep\w*[=\0]|-d\0?)([^\0]+)",
)
