"""Flux: ranks start by its own launcher; a job is not put into the queue again.

By the manual pages of flux-core, and scripts of this form were run with Flux 0.88; not run where
this is tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distcache.launch.schedulers.scheduler import Scheduler, Shape


def _directives(shape: Shape) -> Iterator[str]:
    yield f"--job-name={shape.name}"
    yield f"--nodes={shape.nodes}"
    yield f"--nslots={shape.ranks}"
    yield f"--cores-per-slot={shape.cpus}"
    yield f"--time-limit={shape.minutes}m"
    yield f"--output={shape.logs}/{{{{id}}}}.log"
    if shape.queue is not None:
        yield f"--queue={shape.queue}"
    if shape.account is not None:
        yield f"--bank={shape.account}"


def _launch(shape: Shape) -> Sequence[str]:
    signal = f"--signal=SIGUSR1@{shape.signal_delay}s"
    # Without nodes, ranks fill the first one, where a job has all cores of its nodes.
    ranks = (f"--nodes={shape.nodes}", f"--ntasks={shape.ranks}", f"--cores-per-task={shape.cpus}")
    return ("flux", "run", signal, *ranks)


FLUX = Scheduler(
    title="Flux",
    prefix="#flux:",
    directives=_directives,
    launch=_launch,
    submit=("flux", "batch"),
    after=lambda job, _: (f"--dependency=afterok:{job}",),  # beside those of the script
    job_pattern=r"^(\S+)$",
    requeue="",
    sentinel=r"\W*(?:flux|FLUX):",  # Flux RFC 36
)
