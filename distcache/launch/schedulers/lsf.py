"""IBM Spectrum LSF.

A job with an exit code of ``-Q`` is put into the queue again, under its number. By the command
reference of LSF 10.1; not run where this is developed.
"""

from __future__ import annotations

from collections.abc import Iterator

from distcache.launch.schedulers.scheduler import Scheduler, Shape, gibibytes, mpiexec


def _directives(shape: Shape) -> Iterator[str]:
    yield f"-J {shape.name}"
    yield f"-n {shape.ranks}"
    memory = "" if shape.memory is None else f" rusage[mem={gibibytes(shape.memory)}G]"
    affinity = "" if shape.cpus == 1 else f" affinity[core({shape.cpus})]"
    yield f'-R "span[ptile={shape.tasks}]{memory}{affinity}"'
    yield f"-W {shape.minutes}"
    yield f"-wt {-(-shape.signal_delay // 60)}"
    yield "-wa USR1"
    yield '-Q "99"'
    yield f"-o {shape.logs}/%J.log"
    if shape.queue is not None:
        yield f"-q {shape.queue}"
    if shape.account is not None:
        yield f"-P {shape.account}"


LSF = Scheduler(
    title="LSF",
    prefix="#BSUB",
    directives=_directives,
    launch=mpiexec,
    submit=("bsub",),
    after=lambda job, own: ("-w", f"done({job}) && ({own})" if own else f"done({job})"),
    job_pattern=r"<(\d+)>",
    requeue="exit 99",
    number="LSB_JOBID",
    takes=("memory",),
    takes_input=True,
    waiting=r"\0-w(?![at](?:\0|[A-Z0-9]))\0?([^\0]+)",  # not -wa and -wt
)
