"""Slurm, as text; jobs are submitted by `distcache.launch.prejob`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distcache.launch.schedulers.scheduler import Scheduler, Shape


def _directives(shape: Shape) -> Iterator[str]:
    yield f"--job-name={shape.name}"
    yield f"--nodes={shape.nodes}"
    yield f"--ntasks-per-node={shape.tasks}"
    yield f"--cpus-per-task={shape.cpus}"
    yield f"--time={shape.minutes}"
    yield f"--signal=USR1@{shape.signal_delay}"
    yield "--requeue"
    yield "--open-mode=append"
    yield f"--output={shape.logs}/%j.log"
    if shape.memory is not None:
        yield f"--mem={shape.memory}G"
    if shape.queue is not None:
        yield f"--partition={shape.queue}"
    if shape.account is not None:
        yield f"--account={shape.account}"
    if shape.qos is not None:
        yield f"--qos={shape.qos}"
    if shape.constraint is not None:
        yield f"--constraint={shape.constraint}"


def _launch(shape: Shape) -> Sequence[str]:
    own = (f"--mpi={shape.mpi}", f"--cpus-per-task={shape.cpus}", "--kill-on-bad-exit=1")
    return ("srun", *own, *shape.srun)


SLURM = Scheduler(
    title="Slurm",
    prefix="#SBATCH",
    directives=_directives,
    launch=_launch,
    submit=("sbatch", "--parsable"),
    after=lambda job: (f"--dependency=afterok:{job}", "--kill-on-invalid-dep=yes"),
    job_pattern=r"^(\d+)",
    requeue='scontrol requeue "$SLURM_JOB_ID" && sleep 60',
)
