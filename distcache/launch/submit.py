"""The way of a configuration to a job that trains: a pre-job if the cache is not there yet."""

from __future__ import annotations

from pathlib import Path

import msgspec

from distcache.build.claim import is_finished
from distcache.build.prepare import cache_path, make_plan_together, require_name
from distcache.errors import DistcacheError
from distcache.launch.mpi_plugin import find_plugin
from distcache.launch.prejob import JobFiles, JobOptions, submit_prejob
from distcache.launch.training import require_script, submit_training
from distcache.plan.assignment import assign
from distcache.plan.decode import load_config
from distcache.plan.estimate import Estimate, estimate
from distcache.plan.layout import make_layout
from distcache.plan.model import Plan
from distcache.progress import Progress, Silent
from distcache.ranks.communicator import SerialCommunicator

__all__ = ["SubmitOptions", "Submitted", "submit"]


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to submit; None leaves the choice to distcache, or to Slurm.

    Attributes
    ----------
    nodes, tasks_per_node, cpus_per_task : int
        Of the pre-job. Each task is a rank, with as many threads as it has CPUs.
    minutes, memory : int or None, str or None
        By default from the plan's estimate.
    memory_limit : int or None
        Bytes that no rank may exceed.
    reuse : tuple of Path
        Other caches to take sections and blends over from.
    logs : Path or None
        By default beside the cache.
    mpi : str or None
        By default what suits mpi4py.
    partition, account, qos, constraint : str or None
        As for sbatch.
    """

    nodes: int = 1
    tasks_per_node: int = 8
    cpus_per_task: int = 1
    minutes: int | None = None
    memory: str | None = None
    memory_limit: int | None = None
    reuse: tuple[Path, ...] = ()
    logs: Path | None = None
    mpi: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None


class Submitted(msgspec.Struct, frozen=True):
    """What was submitted.

    Attributes
    ----------
    cache, key : str
        Where it will be, or is, and what is in it.
    estimate : Estimate
        What building is expected to take.
    prejob : str or None
        The job that builds; None if the cache is there.
    training : str or None
        The job that trains, if there is one.
    options : JobOptions or None
        What the pre-job asks for.
    logs : str or None
        Where it writes.
    """

    cache: str
    key: str
    estimate: Estimate
    prejob: str | None = None
    training: str | None = None
    options: JobOptions | None = None
    logs: str | None = None

    @property
    def files(self) -> JobFiles:
        """The files of the pre-job, which there must be."""
        assert self.logs is not None
        assert self.prejob is not None
        return JobFiles(Path(self.logs), self.prejob)


def submit(
    config: Path,
    directory: Path,
    name: str | None,
    training: list[str],
    options: SubmitOptions = SubmitOptions(),  # noqa: B008  frozen
    progress: Progress | None = None,
) -> Submitted:
    """Submit a job that builds a cache, unless it is there, and one that trains after it.

    Parameters
    ----------
    config : Path
        The configuration's file, seen by all nodes.
    directory : Path
        For the cache, shared by all nodes.
    name : str or None
        File name without ``.h5``; by default the start of the key.
    training : list of str
        A batch script and its arguments; empty for none.
    options : SubmitOptions
        How.
    progress : Progress or None
        Told of each step.

    Raises
    ------
    DistcacheError
        Before anything is submitted, for all that can be known by then.
    """
    require_name(name)
    progress = progress or Silent()
    threads = options.cpus_per_task
    plan = make_plan_together(SerialCommunicator(), load_config(config), threads, progress)
    final = cache_path(directory, name, plan)
    foreseen = _foresee(plan, options)
    if training:
        require_script(training[0], final)
    if is_finished(final, plan.key):
        job = submit_training(training, final, None) if training else None
        return Submitted(str(final), plan.key, foreseen, training=job)
    progress.phase("submitting the pre-job")
    asked = _ask_for(options, foreseen)
    logs = (options.logs or final.with_suffix(".jobs")).absolute()
    files = submit_prejob(logs, _words(config, final, plan.key, options), asked)
    found = Submitted(str(final), plan.key, foreseen, files.job, None, asked, str(logs))
    if not training:
        return found
    try:
        job = submit_training(training, final, files.job)
    except DistcacheError as error:
        raise DistcacheError(
            *error.problems, f"pre-job {files.job} is submitted and builds {final} all the same"
        ) from error
    return msgspec.structs.replace(found, training=job)


def _foresee(plan: Plan, options: SubmitOptions) -> Estimate:
    layout = make_layout(plan.items)
    units = frozenset(range(len(layout.units)))
    ranks, threads = options.nodes * options.tasks_per_node, options.cpus_per_task
    work = assign(plan.items, layout, units, ranks, threads, options.memory_limit)
    return estimate(plan, layout, work, options.tasks_per_node)


def _ask_for(options: SubmitOptions, foreseen: Estimate) -> JobOptions:
    return JobOptions(
        nodes=options.nodes,
        tasks_per_node=options.tasks_per_node,
        cpus_per_task=options.cpus_per_task,
        minutes=options.minutes or foreseen.time_minutes,
        memory=options.memory or f"{foreseen.memory_gib}G",
        mpi=options.mpi or find_plugin(options.nodes * options.tasks_per_node),
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
    )


def _words(config: Path, final: Path, key: str, options: SubmitOptions) -> list[str]:
    """Return the command that every rank of the pre-job runs."""
    words = ["build", str(config.absolute()), "-o", str(final.parent), "--name", final.stem]
    words += ["--require-key", key, "--threads", str(options.cpus_per_task)]
    words += ["--log-format", "plain"]
    if options.memory_limit is not None:
        words += ["--memory-limit", str(options.memory_limit)]
    for path in options.reuse:
        words += ["--reuse", str(path.absolute())]
    return words
