"""Submit a training job, and before it a pre-job if the cache does not exist yet."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from distcache.builder.configuration import load_config
from distcache.builder.job import MemoryLimit, ReusedCaches
from distcache.builder.prepare import (
    cache_path,
    is_finished,
    make_plan_together,
    require_name,
)
from distcache.cache import open_cache
from distcache.errors import BuildInterrupted, ConfigError, DistcacheError, NotReady
from distcache.launch.commands import call
from distcache.launch.prejob import (
    NONE,
    JobFiles,
    JobOptions,
    job_directory,
    make_private,
    sbatch_parameters,
    submit_prejob,
)
from distcache.launch.schedulers.known_schedulers import SCHEDULERS, SchedulerName, find_scheduler
from distcache.launch.schedulers.scheduler import Shape
from distcache.launch.scripts import (
    CACHE_VARIABLE,
    build_script,
    require_own_script,
    restarts_file,
    submit_script,
    training_script,
)
from distcache.launch.slurm import find_plugin, job_number, without_variables
from distcache.option import Option
from distcache.plan.assignment import Estimate, assign, estimate
from distcache.plan.config import Config, Slurm
from distcache.plan.layout import make_layout
from distcache.plan.model import Plan
from distcache.plan.problems import plan_warnings
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.cores import share_of_cores
from distcache.ranks.progress import NullProgress, Progress
from distcache.storage.units import parse_size

MISREAD: Final = "%\\\"'$:,{}"  # in paths of logs, by one scheduler or another
SLURMS: Final = ("qos", "constraint", "srun", "mpi")  # options that other schedulers lack


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to submit."""

    scheduler: Annotated[
        Literal["auto", "slurm", "pbs", "flux", "lsf", "sge"],
        Option("Scheduler of the jobs; auto: the one whose commands are here."),
    ] = "auto"
    # Resources to ask the scheduler for. Each task is a rank, with as many threads as it has CPUs.
    # If time or memory is None, the plan's estimate is used.
    job: JobOptions = JobOptions()
    memory_limit: MemoryLimit = None
    reuse: ReusedCaches = ()
    logs: Annotated[
        Path | None, Option("Directory for the pre-job's files; by default beside the cache.")
    ] = None


class Prejob(msgspec.Struct, frozen=True):
    """A submitted pre-job."""

    job: str  # number of the job
    options: JobOptions  # resources that it asks for
    estimate: Estimate  # the predicted time and memory
    logs: str  # directory of its files

    @property
    def files(self) -> JobFiles:
        """Its files."""
        return JobFiles(Path(self.logs), self.job)


class Submitted(msgspec.Struct, frozen=True):
    """The result of a submission."""

    # path and key of the cache
    cache: str
    key: str
    prejob: Prejob | None  # the job that builds; None if the cache exists
    training: str | None  # the number of the job that trains, if there is one
    scheduler: SchedulerName = "slurm"


class Scripts(msgspec.Struct, frozen=True):
    """The batch scripts of a submission that is only printed."""

    scheduler: SchedulerName
    prejob: str  # script of the job that builds
    training: str | None  # script of the job that trains, if there is one
    logs: str  # directory of the pre-job's output, which must exist


def submit(
    config: Path,
    directory: Path,
    name: str | None,
    training: list[str],
    options: SubmitOptions = SubmitOptions(),  # noqa: B008  frozen
    progress: Progress | None = None,
) -> Submitted:
    """Submit a job that builds a cache, unless it exists, and one that trains after it.

    Parameters
    ----------
    config : Path
        The configuration's file, seen by all nodes; or ``@FILE`` with a training command.
    directory : Path
        Directory for the cache, shared by all nodes.
    name : str or None
        File name without ``.h5``; by default the start of the key.
    training : list of str
        A batch script and its arguments; empty for none.
    options : SubmitOptions
        Resources of the job, and how to build.
    progress : Progress or None
        Receives each step.

    Returns
    -------
    Submitted
        The jobs.

    Raises
    ------
    DistcacheError
        Before anything is submitted, if the problem can be detected by then.
    """
    progress = progress or NullProgress()
    scheduler = scheduler_of(options)
    plan, options = _planned(config, name, options, scheduler, progress)
    final = cache_path(directory, name, plan)
    script = _training_script(training, final, scheduler)
    path = logs_of(options, final) / f"{final.stem}-train.sh" if script else None
    if path is not None:
        require_own_script(path)  # before the pre-job is submitted
    prejob = None
    if not is_finished(final, plan.key):
        progress.phase("submitting the pre-job")
        if scheduler == "slurm":
            prejob = _submit_prejob(config, final, plan, options)
        else:
            prejob = _submit_prejob_script(config, final, plan, options, scheduler)
    if not training:
        return Submitted(str(final), plan.key, prejob, None, scheduler)
    after = None if prejob is None else prejob.job
    try:
        if path is None:  # Slurm takes the script as it is
            job = _submit_training(training, final, after)
        else:
            make_logs(options, final)
            job = submit_script(SCHEDULERS[scheduler], path, script, after)
    except (DistcacheError, OSError) as error:
        if prejob is None:
            raise
        left = f"pre-job {prejob.job} is submitted, and still builds {final}"
        kind = BuildInterrupted if isinstance(error, BuildInterrupted) else DistcacheError
        raise kind(str(error), left) from error
    return Submitted(str(final), plan.key, prejob, job, scheduler)


def scripts_of(
    config: Path,
    directory: Path,
    name: str | None,
    training: list[str],
    options: SubmitOptions,
    progress: Progress,
) -> Scripts:
    """Return a batch script that builds a cache, whether it exists or not, and one that trains.

    Nothing is written or submitted. Slurm's script is complete in itself, where `submit` starts
    its ranks through submitit.

    Parameters
    ----------
    config, directory, name, training, options, progress
        Arguments of `submit`.

    Raises
    ------
    DistcacheError
        As `submit`.
    """
    scheduler = scheduler_of(options)
    plan, options = _planned(config, name, options, scheduler, progress)
    final = cache_path(directory, name, plan)
    text, _, _ = _prejob_script(config, final, plan, options, scheduler)
    train = None
    if training:
        train = _training_script(training, final, scheduler) or Path(training[0]).read_text("utf-8")
    return Scripts(scheduler, text, train, str(logs_of(options, final)))


def _training_script(words: list[str], final: Path, scheduler: SchedulerName) -> str:
    """Return the script that trains, as it is submitted; Slurm takes the user's own, unchanged."""
    if words and scheduler == "slurm":
        require_script(words[0], final)
    return training_script(words, final) if words and scheduler != "slurm" else ""


def scheduler_of(options: SubmitOptions) -> SchedulerName:
    """Return the scheduler that is asked for, or is here."""
    if options.scheduler == "auto":
        return find_scheduler(os.environ, shutil.which)
    return options.scheduler


def _planned(
    config: Path,
    name: str | None,
    options: SubmitOptions,
    scheduler: SchedulerName,
    progress: Progress,
) -> tuple[Plan, SubmitOptions]:
    """Return what is to be built, and the options with those of the configuration."""
    require_name(name)
    alone = SerialCommunicator()
    settings = load_config(config)
    if scheduler == "slurm":
        options = _with_configured(options, settings)
    plan = make_plan_together(alone, settings, share_of_cores(alone), progress)
    for warning in plan_warnings(settings, plan):
        progress.note(f"warning: {warning}")
    for path in options.reuse:
        open_cache(path)
    return plan, options


def _with_configured(options: SubmitOptions, settings: Config) -> SubmitOptions:
    """Put the Slurm options of the configuration before the given ones."""
    known = settings.slurm or Slurm()
    job = msgspec.structs.replace(
        options.job,
        sbatch=(*known.sbatch, *options.job.sbatch),
        srun=(*known.srun, *options.job.srun),
    )
    sbatch_parameters(job.sbatch)
    return msgspec.structs.replace(options, job=job)


def _estimated(plan: Plan, options: SubmitOptions) -> tuple[JobOptions, Estimate]:
    """Return what a pre-job asks for, with the plan's estimates, and these."""
    asked = options.job
    ranks = asked.nodes * asked.tasks_per_node
    layout = make_layout(plan.items)
    work = assign(plan.items, layout, ranks, asked.cpus_per_task, options.memory_limit)
    predicted = estimate(plan, layout, work, asked.tasks_per_node)
    asked = msgspec.structs.replace(
        asked,
        minutes=asked.minutes or predicted.minutes,
        memory=f"{predicted.memory_gib}G" if asked.memory is None else asked.memory,
    )
    return asked, predicted


def _submit_prejob(config: Path, final: Path, plan: Plan, options: SubmitOptions) -> Prejob:
    """Submit the job that builds to Slurm, by submitit."""
    asked, predicted = _estimated(plan, options)
    mpi = asked.mpi or find_plugin(asked.nodes * asked.tasks_per_node)
    asked = msgspec.structs.replace(asked, mpi=mpi)
    logs = Path(os.path.realpath(options.logs or job_directory(final)))
    files = submit_prejob(logs, build_words(config, final, plan.key, options), final, asked)
    return Prejob(files.job, asked, predicted, str(logs))


def _submit_prejob_script(
    config: Path, final: Path, plan: Plan, options: SubmitOptions, scheduler: SchedulerName
) -> Prejob:
    """Submit the job that builds to a scheduler other than Slurm, as a batch script."""
    text, asked, predicted = _prejob_script(config, final, plan, options, scheduler)
    logs = make_logs(options, final)
    restarts_file(logs, final).unlink(missing_ok=True)
    job = submit_script(SCHEDULERS[scheduler], logs / f"{final.stem}-build.sh", text)
    return Prejob(job, asked, predicted, str(logs))


def _prejob_script(
    config: Path, final: Path, plan: Plan, options: SubmitOptions, scheduler: SchedulerName
) -> tuple[str, JobOptions, Estimate]:
    """Return the batch script of the job that builds, what it asks for, and the estimate."""
    asked, predicted = _estimated(plan, options)
    if options.job.memory is not None and not SCHEDULERS[scheduler].asks_memory:
        raise ConfigError(
            f"--mem: how memory is asked for under {SCHEDULERS[scheduler].title} is the site's "
            "choice; give its directive with --directive"
        )
    shape = _shape_of(asked, logs_of(options, final), scheduler)
    words = build_words(config, final, plan.key, options)
    return build_script(SCHEDULERS[scheduler], shape, words, final, asked.sbatch), asked, predicted


def logs_of(options: SubmitOptions, final: Path) -> Path:
    """Return the directory of a job's files.

    Raises
    ------
    ConfigError
        If a scheduler would misread its path.
    """
    logs = Path(os.path.realpath(options.logs or job_directory(final)))
    if any(char.isspace() or not char.isprintable() or char in MISREAD for char in str(logs)):
        raise ConfigError(
            f"{str(logs)!r}: schedulers misread blanks, quotes and any of {MISREAD} in the paths "
            "of logs; choose another directory with --logs"
        )
    return logs


def make_logs(options: SubmitOptions, final: Path) -> Path:
    """Return the directory of a job's files, which is made.

    Raises
    ------
    ConfigError
        If others could replace it, or a scheduler would misread its path.
    """
    logs = logs_of(options, final)
    make_private(logs)
    return logs


def _shape_of(asked: JobOptions, logs: Path, scheduler: SchedulerName) -> Shape:
    """Return what a batch script asks for.

    Raises
    ------
    ConfigError
        If an option is Slurm's, and the scheduler is another one.
    """
    if scheduler != "slurm":
        foreign = [name for name in SLURMS if getattr(asked, name)]
        if foreign:
            raise ConfigError(
                *(
                    f"--{name}: is Slurm's; give a directive of {SCHEDULERS[scheduler].title} "
                    "with --directive"
                    for name in foreign
                )
            )
    for text in filter(None, (asked.partition, asked.account, *asked.sbatch)):
        if not text.isprintable() or not text.strip():
            raise ConfigError(f"{text!r}: expected printable text")
    assert asked.minutes is not None
    memory = None if asked.memory in NONE else parse_size(str(asked.memory))
    return Shape(
        name="distcache",
        nodes=asked.nodes,
        tasks=asked.tasks_per_node,
        cpus=asked.cpus_per_task,
        minutes=asked.minutes,
        memory=None if memory is None else max(1, -(-memory >> 30) if memory else 1),
        queue=asked.partition,
        account=asked.account,
        logs=logs,
        mpiexec=shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec",
        mpi=asked.mpi or "pmi2",
        srun=asked.srun,
        qos=asked.qos,
        constraint=asked.constraint,
    )


def _absolute(config: Path) -> str:
    """Return the path that means the same on every node, or ``@`` and the path of a command."""
    text = str(config)
    return f"@{Path(text[1:]).absolute()}" if text.startswith("@") else str(config.absolute())


def build_words(config: Path, final: Path, key: str, options: SubmitOptions) -> list[str]:
    """Return the command that every rank of the pre-job runs."""
    words = ["build", _absolute(config), "-o", str(final.parent), "--name", final.stem]
    words += ["--require-key", key, "--threads", str(options.job.cpus_per_task)]
    words += ["--log-format", "plain"]
    if options.memory_limit is not None:
        words += ["--memory-limit", str(options.memory_limit)]
    for path in options.reuse:
        words += ["--reuse", str(path.absolute())]
    return words


def require_script(script: str, cache: Path) -> None:
    """Check that a file is a batch script that can get the path of a cache.

    ``sbatch --test-only`` checks more, but also refuses jobs that only have to wait for nodes.

    Raises
    ------
    NotReady
        If there is no such file.
    ConfigError
        If it is no script, or Slurm cannot pass it the cache's path.
    """
    if not Path(script).is_file():
        raise NotReady(f"{script}: no such script")
    if not "".join(_head(script)[:1]).startswith("#!"):
        raise ConfigError(
            f"{script}: is no batch script, which starts with a line like #!/bin/bash"
        )
    _export(script, cache)


def _submit_training(words: Sequence[str], cache: Path, after: str | None) -> str:
    """Submit a script, and return the job's number.

    Parameters
    ----------
    words : sequence of str
        The script and its arguments.
    cache : Path
        The script finds its path in ``DISTCACHE_CACHE``.
    after : str or None
        The job that must have succeeded; if it does not, Slurm cancels the script's job.

    Raises
    ------
    ConfigError
        If Slurm cannot pass on the path.
    DistcacheError
        In Slurm's words, if it refuses the script.
    """
    dependency = [] if after is None else SCHEDULERS["slurm"].after(after)
    command = [*dependency, *_export(words[0], cache), *words]
    with without_variables():
        said = call(["sbatch", "--parsable", *command], {CACHE_VARIABLE: str(cache)})
    return job_number(said)


def _export(script: str, cache: Path) -> list[str]:
    """Return the option that adds the cache to the variables of a script with ``--export``.

    Without ``--export`` a job gets all variables of the process that submits it.
    """
    found = (re.match(r"#SBATCH\s(?:.*\s)?--export[=\s]+(\S+)", line) for line in _head(script))
    named = [match.group(1) for match in found if match]
    wanted = named[-1].strip("\"'") if named else os.environ.get("SBATCH_EXPORT", "ALL")
    if wanted == "ALL":
        return []
    if "," in str(cache):
        raise ConfigError(
            f"{script}: has --export, with which Slurm cannot pass on the comma in {cache}"
        )
    variable = f"{CACHE_VARIABLE}={cache}"
    if wanted == "NONE":
        return [f"--export={variable}", "--get-user-env"]  # as Slurm does with NONE itself
    return [f"--export={variable if wanted == 'NIL' else f'{wanted},{variable}'}"]


def _head(script: str) -> list[str]:
    """Return the lines that Slurm searches for options: comments before the first command."""
    with open(script, encoding="utf-8", errors="replace") as stream:
        lines = stream.read(1 << 16).splitlines()
    return list(itertools.takewhile(lambda line: not line or line.startswith("#"), lines))
