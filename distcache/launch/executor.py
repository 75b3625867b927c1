"""What the pre-job asks Slurm for, and its batch script, which submitit writes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from distcache.errors import BuildInterrupted, ConfigError, NotReady
from distcache.launch.slurm import job_number, submission

if TYPE_CHECKING:
    from submitit import SlurmExecutor

__all__ = ["JobOptions", "make_executor"]

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

    class Executor(SlurmExecutor):
        """Submits within bounds, and hides from sbatch what would overrule the script."""

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return submission([str(submission_file_path)], *_overruling(options))

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            return job_number(string if isinstance(string, str) else string.decode())

    try:
        executor = Executor(directory, python=f"{shlex.quote(sys.executable)} -P")
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
        srun_args=[f"--mpi={options.mpi}", "--kill-on-bad-exit=1"],
        teardown=_end_of_script(cache),
        additional_parameters={"requeue": True},
    )
    return executor


def _overruling(options: JobOptions) -> list[str]:
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
