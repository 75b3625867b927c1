"""Grid Engine: the parallel environment and its rule of allocation are the site's.

A job gets SIGUSR1 at its soft limit, and SIGKILL at the hard one; a script that ends with 99 starts
again. ``-hold_jid`` also lets jobs pass whose predecessor has failed: the training script looks for
the cache first. By the manual pages of Grid Engine 8.1.9, and run with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from distcache.launch.schedulers.scheduler import Scheduler, Shape, mpiexec


def _directives(shape: Shape) -> Iterator[str]:
    hard = 60 * shape.minutes
    yield f"-N {shape.name}"
    if shape.ranks * shape.cpus > 1:
        yield f"-pe mpi {shape.ranks * shape.cpus}"
    yield f"-l h_rt={hard},s_rt={hard - shape.signal_delay}"
    yield "-cwd"
    if shape.variables:  # not -V: what it takes over, secrets included, is kept with the job
        yield f"-v {','.join(shape.variables)}"
    yield "-r y"
    yield "-j y"
    yield f"-o {shape.logs}/$JOB_ID.log"
    yield "-S /bin/bash"
    if shape.queue is not None:
        yield f"-q {shape.queue}"
    if shape.account is not None:
        yield f"-P {shape.account}"


SGE = Scheduler(
    title="Grid Engine",
    prefix="#$",
    directives=_directives,
    launch=mpiexec,
    submit=("qsub", "-terse"),
    after=lambda job, own: ("-hold_jid", f"{job},{own}" if own else job),
    job_pattern=r"^(\d+)",
    requeue="exit 99",
    number="JOB_ID",
    limits=("h_rt=", "s_rt="),
    replaced={"-V": "-v"},
    reads_all=True,
    waiting=r"\0-hold_jid\0([^\0]+)",
)
