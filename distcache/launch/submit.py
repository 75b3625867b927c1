"""The way of a configuration to a job that trains: a pre-job if the cache is not there yet."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from distcache.build.claim import is_finished
from distcache.build.prepare import cache_path, make_plan_together, require_name
from distcache.cache import open_cache
from distcache.errors import BuildInterrupted, DistcacheError
from distcache.launch.executor import JobOptions, sbatch_parameters
from distcache.launch.mpi_plugin import find_plugin
from distcache.launch.prejob import JobFiles, job_directory, submit_prejob
from distcache.launch.training import require_script, submit_training
from distcache.plan.assignment import assign_all
from distcache.plan.config import Config, Slurm
from distcache.plan.decode import load_config
from distcache.plan.estimate import Estimate, estimate
from distcache.plan.layout import make_layout
from distcache.plan.model import Plan
from distcache.plan.warnings import plan_warnings
from distcache.progress import Progress, Silent
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.cores import share_of_cores

__all__ = ["Prejob", "SubmitOptions", "Submitted", "submit"]


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to submit.

    Attributes
    ----------
    job : JobOptions
        What to ask Slurm for. Each task is a rank, with as many threads as it has CPUs; a time and
        a memory that are None are taken from the plan's estimate.
    memory_limit : int or None
        Bytes that no rank may exceed.
    reuse : tuple of Path
        Other caches to take sections and blends over from.
    logs : Path or None
        By default beside the cache.
    """

    job: JobOptions = JobOptions()
    memory_limit: int | None = None
    reuse: tuple[Path, ...] = ()
    logs: Path | None = None


class Prejob(msgspec.Struct, frozen=True):
    """A pre-job that was submitted.

    Attributes
    ----------
    job : str
        Its number.
    options : JobOptions
        What it asks for.
    estimate : Estimate
        What building is expected to take.
    logs : str
        Directory of its files.
    """

    job: str
    options: JobOptions
    estimate: Estimate
    logs: str

    @property
    def files(self) -> JobFiles:
        """Where its files are."""
        return JobFiles(Path(self.logs), self.job)


class Submitted(msgspec.Struct, frozen=True):
    """What was submitted.

    Attributes
    ----------
    cache, key : str
        Where it will be, or is, and what is in it.
    prejob : Prejob or None
        The job that builds; None if the cache is there.
    training : str or None
        The number of the job that trains, if there is one.
    """

    cache: str
    key: str
    prejob: Prejob | None
    training: str | None


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

    Returns
    -------
    Submitted
        The jobs.

    Raises
    ------
    DistcacheError
        Before anything is submitted, for all that can be known by then.
    """
    require_name(name)
    progress = progress or Silent()
    alone = SerialCommunicator()
    settings = load_config(config)
    options = _with_configured(options, settings)
    plan = make_plan_together(alone, settings, share_of_cores(alone), progress)
    for warning in plan_warnings(settings, plan):
        progress.note(f"warning: {warning}")
    final = cache_path(directory, name, plan)
    for path in options.reuse:
        open_cache(path)
    if training:
        require_script(training[0], final)
    prejob = None
    if not is_finished(final, plan.key):
        progress.phase("submitting the pre-job")
        prejob = _submit_prejob(config, final, plan, options)
    if not training:
        return Submitted(str(final), plan.key, prejob, None)
    try:
        job = submit_training(training, final, None if prejob is None else prejob.job)
    except (DistcacheError, OSError) as error:
        if prejob is None:
            raise
        left = f"pre-job {prejob.job} is submitted, and builds {final} all the same"
        kind = BuildInterrupted if isinstance(error, BuildInterrupted) else DistcacheError
        raise kind(str(error), left) from error
    return Submitted(str(final), plan.key, prejob, job)


def _with_configured(options: SubmitOptions, settings: Config) -> SubmitOptions:
    """Put the options of Slurm that a configuration has before those that were given."""
    known = settings.slurm or Slurm()
    job = msgspec.structs.replace(
        options.job,
        sbatch=(*known.sbatch, *options.job.sbatch),
        srun=(*known.srun, *options.job.srun),
    )
    sbatch_parameters(job.sbatch)
    return msgspec.structs.replace(options, job=job)


def _submit_prejob(config: Path, final: Path, plan: Plan, options: SubmitOptions) -> Prejob:
    asked = options.job
    ranks = asked.nodes * asked.tasks_per_node
    layout = make_layout(plan.items)
    work = assign_all(plan.items, layout, ranks, asked.cpus_per_task, options.memory_limit)
    foreseen = estimate(plan, layout, work, asked.tasks_per_node)
    asked = msgspec.structs.replace(
        asked,
        minutes=asked.minutes or foreseen.minutes,
        memory=asked.memory or f"{foreseen.memory_gib}G",
        mpi=asked.mpi or find_plugin(ranks),
    )
    logs = Path(os.path.realpath(options.logs or job_directory(final)))
    files = submit_prejob(logs, build_words(config, final, plan.key, options), final, asked)
    return Prejob(files.job, asked, foreseen, str(logs))


def build_words(config: Path, final: Path, key: str, options: SubmitOptions) -> list[str]:
    """Return the command that every rank of the pre-job runs."""
    words = ["build", str(config.absolute()), "-o", str(final.parent), "--name", final.stem]
    words += ["--require-key", key, "--threads", str(options.job.cpus_per_task)]
    words += ["--log-format", "plain"]
    if options.memory_limit is not None:
        words += ["--memory-limit", str(options.memory_limit)]
    for path in options.reuse:
        words += ["--reuse", str(path.absolute())]
    return words
