"""What the pre-job asks Slurm for, and its batch script, which submitit writes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from distcache.errors import BuildInterrupted, ConfigError, NotReady

if TYPE_CHECKING:
    from submitit import SlurmExecutor

__all__ = ["JobOptions", "hidden_variables", "make_executor", "sbatch_parameters", "srun_words"]

OPTION: Final = re.compile(r"--(?P<name>[a-z][a-z0-9-]*)(=(?P<value>.+))?")
# Where the job's files are, what its shape is and how it ends and starts again.
OURS: Final = frozenset(
    [
        "array",
        "chdir",
        "error",
        "input",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "open-mode",
        "output",
        "parsable",
        "requeue",
        "no-requeue",
        "signal",
        "wrap",
    ]
)

SIGNAL_DELAY: Final = 90  # seconds before the time limit at which the build is interrupted
RESTARTS: Final = 3


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the pre-job asks Slurm for.

    Attributes
    ----------
    nodes, tasks_per_node, cpus_per_task : int
        Its shape; every task is a rank.
    minutes : int or None
        Time limit; None until it has been foreseen.
    memory : str or None
        Of each node, as Slurm writes it; likewise.
    mpi : str or None
        Plugin of srun; None until it has been found out.
    partition, account, qos, constraint : str or None
        As for sbatch.
    sbatch, srun : tuple of str
        More options, of sbatch and of the srun in the batch script, as they stand there.
    """

    nodes: int = 1
    tasks_per_node: int = 8
    cpus_per_task: int = 1
    minutes: int | None = None
    memory: str | None = None
    mpi: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()


def make_executor(directory: Path, cache: Path, options: JobOptions) -> SlurmExecutor:
    """Return what writes the batch script and submits it.

    Raises
    ------
    ConfigError
        If there is no submitit, or no Slurm.
    """
    try:
        from submitit import SlurmExecutor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"submitting needs submitit ({error}); install distcache[slurm]"
        ) from error

    try:
        executor = SlurmExecutor(directory, python=f"{shlex.quote(sys.executable)} -P")
    except RuntimeError as error:
        raise ConfigError("srun: not found; run this where Slurm's commands are") from error
    assert options.minutes is not None
    executor.update_parameters(
        job_name="distcache",
        nodes=options.nodes,
        ntasks_per_node=options.tasks_per_node,
        cpus_per_task=options.cpus_per_task,
        time=options.minutes,
        mem=options.memory,
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
        wckey=None,  # submitit's own name, which a site may not know
        signal_delay_s=min(SIGNAL_DELAY, 15 * options.minutes),  # at most a quarter of the limit
        srun_args=srun_words(options),
        teardown=_end_of_script(cache),
        additional_parameters={"requeue": True, **sbatch_parameters(options.sbatch)},
    )
    return executor


def srun_words(options: JobOptions) -> list[str]:
    """Return the options of the srun in the batch script.

    Since Slurm 22.05 a step does not have the CPUs per task of its job unless it asks for them.
    """
    words = [f"--mpi={options.mpi}", "--kill-on-bad-exit=1"]
    return [*words, f"--cpus-per-task={options.cpus_per_task}", *options.srun]


def sbatch_parameters(words: Sequence[str]) -> dict[str, Any]:
    """Return options of sbatch as names and values, for lines of the batch script.

    Raises
    ------
    ConfigError
        If one is not ``--name`` or ``--name=value``, or would overrule what distcache relies on.
    """
    found: dict[str, Any] = {}
    problems = []
    for word in words:
        match = OPTION.fullmatch(word)
        if match is None or not word.isprintable():
            problems.append(
                f"--sbatch {word!r}: expected an option of sbatch, such as --gres=gpu:1"
            )
        elif match["name"] in OURS:
            problems.append(f"--sbatch {word!r}: distcache sets this one itself")
        else:
            found[match["name"]] = True if match["value"] is None else match["value"]
    if problems:
        raise ConfigError(*problems)
    return found


def hidden_variables(options: JobOptions) -> list[str]:
    """Return the variables that sbatch would take instead of what the script says."""
    always = ["ARRAY_INX", "EXPORT", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "REQUEUE", "SIGNAL"]
    always += ["TIMELIMIT", "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE"]
    given = msgspec.structs.asdict(options)
    chosen = [name for name in ("partition", "account", "qos", "constraint") if given[name]]
    return [f"SBATCH_{name.upper()}" for name in (*always, *chosen)]


def _end_of_script(cache: Path) -> list[str]:
    """Return the end of the batch script: an interrupted build goes on in the same job.

    So jobs that depend on it go on waiting. Slurm itself does the same for jobs that it preempts.
    """
    return [
        "code=$?",
        # srun may return 0 although a task has not run.
        f'[ "$code" -eq 0 ] && [ ! -e {shlex.quote(str(cache))} ] && code={NotReady.exit_code}',
        f'if [ "$code" -eq {BuildInterrupted.exit_code} ] '
        f'&& [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RESTARTS} ]; then',
        '    echo "distcache was interrupted; requeueing job $SLURM_JOB_ID, which resumes" >&2',
        '    scontrol requeue "$SLURM_JOB_ID" && sleep 60',  # until that ends this script
        "fi",
        'exit "$code"',
    ]
