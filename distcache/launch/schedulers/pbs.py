"""PBS Pro and OpenPBS.

``mpiprocs`` makes each node appear that often in PBS_NODEFILE, which mpiexec reads. PBS sends no
signal before a time limit, so `timeout` does. By the reference guide of PBS Professional; the text
also runs under Slurm's emulation of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distcache.launch.schedulers.scheduler import Scheduler, Shape, clock, gibibytes, mpiexec


def _directives(shape: Shape) -> Iterator[str]:
    memory = "" if shape.memory is None else f":mem={gibibytes(shape.memory)}gb"
    cores = shape.tasks * shape.cpus
    yield f"-N {shape.name}"
    yield f"-l select={shape.nodes}:ncpus={cores}:mpiprocs={shape.tasks}{memory}"
    yield "-l place=scatter"
    yield f"-l walltime={clock(shape.minutes)}"
    yield "-r y"
    yield "-j oe"
    yield f"-o {shape.logs}/"
    if shape.queue is not None:
        yield f"-q {shape.queue}"
    if shape.account is not None:
        yield f"-A {shape.account}"


def _launch(shape: Shape) -> Sequence[str]:
    seconds = 60 * shape.minutes - shape.signal_delay
    return ("timeout", "--preserve-status", "--signal=USR1", str(seconds), *mpiexec(shape))


PBS = Scheduler(
    title="PBS",
    prefix="#PBS",
    directives=_directives,
    launch=_launch,
    submit=("qsub",),
    after=lambda job, own: ("-W", f"depend=afterok:{job}{own and f',{own}'}"),
    job_pattern=r"^(\S+)$",
    requeue='qrerun "$PBS_JOBID" && sleep 60',
    number="PBS_JOBID",
    enter='cd "${PBS_O_WORKDIR:-.}"',
    takes=("memory",),
    limits=("walltime=",),
    waiting=r"\0-W\0?(?:[^\0]*,)?depend=([^\0=]+?)(?=,\w+=|\0|$)",
)
