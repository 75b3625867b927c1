"""Submit a training job, and before it a pre-job if the cache does not exist yet."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from distcache.builder.configuration import load_config
from distcache.builder.job import MemoryLimit, ReusedCaches
from distcache.builder.prepare import (
    agree_on_plan,
    cache_path,
    is_finished,
    require_name,
)
from distcache.cache import open_cache
from distcache.errors import BuildInterrupted, ConfigError, DistcacheError
from distcache.launch.commands import run_command
from distcache.launch.prejob import JobOptions, job_directory, make_private
from distcache.launch.schedulers.known_schedulers import SCHEDULERS, SchedulerName, find_scheduler
from distcache.launch.schedulers.scheduler import NOT_EVERYWHERE, Scheduler, Shape
from distcache.launch.scripts import (
    MODULE,
    build_script,
    own_dependency,
    read_script,
    require_own_script,
    submit_script,
    training_script,
)
from distcache.launch.slurm import find_plugin
from distcache.option import Option
from distcache.plan.assignment import Estimate, assign, estimate
from distcache.plan.config import Config, Slurm
from distcache.plan.layout import make_layout
from distcache.plan.model import Plan
from distcache.plan.problems import plan_warnings
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.job_environment import share_of_cores
from distcache.ranks.progress import NullProgress, Progress
from distcache.storage.files import read_text
from distcache.storage.timeouts import limits

# Variables that a job needs besides those of its login, none of which holds a secret.
CARRIED: Final = re.compile(
    r"PATH|LD_LIBRARY_PATH|PYTHONPATH|DISTCACHE_\w+|MSC_CONFIG|GOOGLE_APPLICATION_CREDENTIALS|HF_HOME"
    r"|AWS_(DEFAULT_)?(PROFILE|REGION)|AWS_(CONFIG_FILE|SHARED_CREDENTIALS_FILE|CA_BUNDLE)"
    r"|AWS_ENDPOINT_URL(_S3)?"
)
CONTROL: Final = re.compile("[\0-\x08\x0b-\x1f\x7f]")  # characters that no shell line has


def read_setup(text: str) -> str:
    """Return the lines of a file, or those that are given.

    Raises
    ------
    ConfigError
        If it is one word that looks like a path, and there is no such file; or is no shell text.
    """
    if "\n" not in text and os.path.lexists(text):
        try:
            text = read_text(text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--setup {text}: cannot be read: {error}") from error
    elif len(text.split()) == 1 and ("/" in text or text.endswith(".sh")):
        raise ConfigError(f"--setup {text}: no such file")
    if (wrong := CONTROL.search(text)) is not None:
        line = text.count("\n", 0, wrong.start()) + 1
        kind = "the line end of Windows" if wrong[0] == "\r" else "a control character"
        raise ConfigError(f"--setup: line {line} has {kind}, {wrong[0]!r}")
    checked = run_command(["bash", "-O", "extglob", "-n"], limits().command, text)
    if checked.returncode:
        raise ConfigError(f"--setup: {checked.stderr.strip()}")
    return text


def read_command(text: str) -> str:
    """Return a command, if a shell would read words of it.

    Raises
    ------
    ConfigError
        If there are none, or a quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--command {text!r}: {error}") from error
    if not words or not text.isprintable():
        raise ConfigError(f"--command {text!r}: expected the words of a command")
    return text


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to submit."""

    scheduler: Annotated[
        Literal["auto", SchedulerName],
        Option("Scheduler of the jobs; auto: the one whose commands are here."),
    ] = "auto"
    # Resources to ask the scheduler for. Each task is a rank, with as many threads as it has CPUs.
    # If time or memory is None, the plan's estimate is used.
    job: JobOptions = JobOptions()
    memory_limit: MemoryLimit = None
    reuse: ReusedCaches = ()
    setup: Annotated[
        str,
        Option(
            "Shell lines of the pre-job before its ranks start, or a file with them: "
            "--setup='module load openmpi'.",
            parse=read_setup,
            shown="",
            metavar="TEXT|FILE",
        ),
    ] = ""
    command: Annotated[
        str | None,
        Option(
            "Command that starts distcache in the pre-job, as in "
            "--command='apptainer exec IMAGE python3 -m distcache'; by default this Python, or "
            "python3 if srun is given a --container-image.",
            parse=read_command,
            metavar="WORDS",
        ),
    ] = None
    logs: Annotated[
        Path | None, Option("Directory for the pre-job's files; by default beside the cache.")
    ] = None


class Prejob(msgspec.Struct, frozen=True):
    """A submitted pre-job."""

    job: str  # number of the job
    options: JobOptions  # resources that it asks for
    estimate: Estimate  # the predicted time and memory
    logs: str  # directory of its files


class Submitted(msgspec.Struct, frozen=True):
    """The result of a submission."""

    # path and key of the cache
    cache: str
    key: str
    prejob: Prejob | None  # the job that builds; None if the cache exists
    training: str | None  # the number of the job that trains, if there is one
    scheduler: SchedulerName = "slurm"


class Scripts(msgspec.Struct, frozen=True):
    """What is submitted: a script that builds, and one that trains."""

    scheduler: SchedulerName
    cache: str
    key: str
    options: JobOptions  # resources that the pre-job asks for
    estimate: Estimate  # the predicted time and memory
    prejob: str  # script of the job that builds
    training: str | None  # script of the job that trains, if there is one
    waits_for: str  # other jobs than the pre-job, by a directive of the training script
    logs: str  # directory of the pre-job's files

    def path(self, which: str) -> Path:
        """Return the path of a script."""
        return Path(self.logs) / f"{Path(self.cache).stem}-{which}.sh"


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
    scripts = scripts_of(config, directory, name, training, options, progress)
    scheduler = SCHEDULERS[scripts.scheduler]
    build, train = scripts.path("build"), scripts.path("train")
    builds = not is_finished(Path(scripts.cache), scripts.key)
    if builds or training:
        make_private(build.parent)
    for path in (build, train):
        require_own_script(path)  # before anything is submitted
    prejob = job = None
    if builds:
        progress.phase("submitting the pre-job")
        hidden = set(scheduler.overruling(scripts.prejob))
        number = submit_script(scheduler, build, scripts.prejob, hidden=hidden)
        prejob = Prejob(number, scripts.options, scripts.estimate, scripts.logs)
    if scripts.training is not None:
        after = () if prejob is None else scheduler.after(prejob.job, scripts.waits_for)
        try:
            job = submit_script(scheduler, train, scripts.training, after)
        except (DistcacheError, OSError) as error:
            if prejob is None:
                raise
            left = f"pre-job {prejob.job} is submitted, and still builds {scripts.cache}"
            kind = BuildInterrupted if isinstance(error, BuildInterrupted) else DistcacheError
            raise kind(str(error), left) from error
    return Submitted(scripts.cache, scripts.key, prejob, job, scripts.scheduler)


def scripts_of(
    config: Path,
    directory: Path,
    name: str | None,
    training: list[str],
    options: SubmitOptions,
    progress: Progress,
) -> Scripts:
    """Return the batch scripts that `submit` submits; nothing is written.

    Parameters
    ----------
    config, directory, name, training, options, progress
        Arguments of `submit`.

    Raises
    ------
    DistcacheError
        As `submit`.
    """
    require_name(name)
    known = scheduler_of(options)
    scheduler = SCHEDULERS[known]
    _require_words(options.job, scheduler)
    alone = SerialCommunicator()
    settings = load_config(config)
    plan = agree_on_plan(alone, settings, share_of_cores(alone), progress)
    for warning in plan_warnings(settings, plan):
        progress.note(f"warning: {warning}")
    for path in options.reuse:
        open_cache(path)
    final = cache_path(directory, name, plan)
    logs = _logs_of(options, final, scheduler)
    asked, predicted = _estimated(plan, options)
    if known == "slurm":
        asked = _with_configured(asked, settings)
    words = build_words(config, final, plan.key, options)
    shape = _shape_of(asked, logs, options)
    text = read_script(training[0]) if training else None
    return Scripts(
        scheduler=known,
        cache=str(final),
        key=plan.key,
        options=asked,
        estimate=predicted,
        prejob=build_script(scheduler, shape, words, final, asked.sbatch),
        training=None if text is None else training_script(text, training[1:], final),
        waits_for="" if text is None else own_dependency(scheduler, training[0], text),
        logs=str(logs),
    )


def scheduler_of(options: SubmitOptions) -> SchedulerName:
    """Return the scheduler that is asked for, or is here."""
    if options.scheduler == "auto":
        return find_scheduler(os.environ, shutil.which)
    return options.scheduler


def _require_words(asked: JobOptions, scheduler: Scheduler) -> None:
    """Refuse options that a scheduler has no words for."""
    foreign = [
        name for name in NOT_EVERYWHERE if getattr(asked, name) and name not in scheduler.takes
    ]
    problems = [
        f"--{name.replace('memory', 'mem')}: distcache has no word for it under "
        f"{scheduler.title}; give a directive of the site with --directive"
        for name in sorted(foreign)
        if getattr(asked, name) not in (None, (), "none")
    ]
    problems += [
        f"--{name} {value!r}: expected one name without blanks"
        for name, value in (("partition", asked.partition), ("account", asked.account))
        if value is not None and len(value.split()) != 1
    ]
    if problems:
        raise ConfigError(*problems)


def _with_configured(asked: JobOptions, settings: Config) -> JobOptions:
    """Put the configuration's options of Slurm before the given ones, and find srun's plugin."""
    known = settings.slurm or Slurm()
    return msgspec.structs.replace(
        asked,
        sbatch=(*known.sbatch, *asked.sbatch),
        srun=(*known.srun, *asked.srun),
        mpi=asked.mpi or find_plugin(asked.nodes * asked.tasks_per_node),
    )


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


def _logs_of(options: SubmitOptions, final: Path, scheduler: Scheduler) -> Path:
    """Return the directory of a job's files; refuse one that the scheduler would misread."""
    logs = Path(os.path.realpath(options.logs or job_directory(final)))
    if any(sign in scheduler.misread or not sign.isprintable() for sign in str(logs)):
        raise ConfigError(
            f"{str(logs)!r}: {scheduler.title} misreads any of {scheduler.misread!r} in the paths "
            "of logs, and what cannot be printed; choose another directory with --logs"
        )
    return logs


def _shape_of(asked: JobOptions, logs: Path, options: SubmitOptions) -> Shape:
    """Return what a batch script asks for."""
    assert asked.minutes is not None
    program = [*map(os.path.expanduser, shlex.split(options.command or ""))]
    # The path of a Python here means nothing in an image, nor that of its mpiexec.
    if not program and any(word.startswith("--container-image") for word in asked.srun):
        program = ["python3", *MODULE]
    beside = None if program else shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    return Shape(
        name="distcache",
        nodes=asked.nodes,
        tasks=asked.tasks_per_node,
        cpus=asked.cpus_per_task,
        minutes=asked.minutes,
        memory=None if asked.memory == "none" else asked.memory,
        queue=asked.partition,
        account=asked.account,
        logs=logs,
        mpiexec=beside or "mpiexec",
        mpi=asked.mpi,
        srun=asked.srun,
        qos=asked.qos,
        constraint=asked.constraint,
        variables=tuple(sorted(filter(CARRIED.fullmatch, os.environ))),
        setup=options.setup,
        program=tuple(program),
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
