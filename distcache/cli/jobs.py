"""`distcache submit`, `slurm-scripts` and `doctor`: jobs, and what would break them."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

import distcache
from distcache.builder.prepare import is_finished
from distcache.cli.common import (
    JsonOption,
    LogOption,
    interrupt_on_signals,
)
from distcache.cli.options import with_options
from distcache.cli.show import make_progress, print_json
from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.launch.commands import call
from distcache.launch.doctor.machine import examine_machine
from distcache.launch.doctor.training import examine_training
from distcache.launch.follow import failure, follow, job_class
from distcache.launch.prejob import JobOptions
from distcache.launch.schedulers.known_schedulers import SCHEDULERS
from distcache.launch.slurm import tasks_that_fit
from distcache.launch.submit import (
    Prejob,
    Scripts,
    SubmitOptions,
    Submitted,
    scheduler_of,
    scripts_of,
    submit,
)
from distcache.megatron.command_line import require_command
from distcache.ranks.progress import Progress
from distcache.storage.files import make_directories, may_write
from distcache.storage.timeouts import limits
from distcache.storage.units import counted
from distcache.storage.url import path_only

PACKAGE: Final = Path(distcache.__file__).parent
SCRIPTS: Final = (PACKAGE / "slurm", PACKAGE.parent / "slurm")  # installed, or in a checkout
TASKS: Final = 4  # ranks of a node, where its CPUs are enough


TrainingArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- TRAIN_SCRIPT ARGS...]",
        help="A batch script that starts when the cache exists, in DISTCACHE_CACHE.",
    ),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--out", "-o", callback=path_only, help="Directory for the cache, shared by all nodes."
    ),
]
TasksOption = Annotated[
    int | None,
    typer.Option(
        "--ntasks-per-node",
        min=1,
        max=1024,
        help="Ranks of the pre-job on each of its nodes; by default 4, or as many as the "
        "partition's nodes have CPUs for.",
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Follow the pre-job; fail with its reason if it fails.")
]


@with_options
def submit_command(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG | @FILE",
            callback=path_only,
            help="Configuration file, or a file with the training command, seen by all nodes.",
        ),
    ],
    directory: OutputOption,
    job: JobOptions,
    options: SubmitOptions,
    training: TrainingArgument = None,
    name: Annotated[
        str | None, typer.Option(help="File name without .h5; by default from the key.")
    ] = None,
    tasks: TasksOption = None,
    wait: WaitOption = False,
    only_print: Annotated[
        bool, typer.Option("--print", help="Write the batch scripts, and submit nothing.")
    ] = False,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Submit a job that builds the cache, unless it exists, and training that starts after it.

    Examples
    --------
        distcache submit blend.yaml -o /shared/caches --nodes 2 --partition cpu -- train.sbatch

        distcache submit blend.yaml -o /shared/caches --name pretrain --wait

        distcache submit blend.yaml -o /shared/caches --directive=--reservation=maintenance

        distcache submit blend.yaml -o /shared/caches --scheduler pbs --print -- train.sh
    """
    tasks = tasks or tasks_that_fit(job.partition, job.cpus_per_task, TASKS)
    job = msgspec.structs.replace(job, tasks_per_node=tasks)
    options = msgspec.structs.replace(options, job=job)
    if wait and scheduler_of(options) != "slurm":
        raise ConfigError(
            "--wait: follows jobs of Slurm only; `distcache ready CACHE --wait SECONDS` waits for "
            "the cache"
        )
    if wait:
        job_class()  # is here, or nothing is submitted
    with make_progress(log_format) as progress:
        if only_print:
            scripts = scripts_of(config, directory, name, training or [], options, progress)
            _print_scripts(scripts, as_json=as_json)
            return
        done = submit(config, directory, name, training or [], options, progress)
        if as_json:
            print_json(done)
        else:
            _show(done)
        if wait and done.prejob is not None:
            _follow(done, done.prejob, progress)


def _print_scripts(scripts: Scripts, *, as_json: bool) -> None:
    """Write the batch scripts, each after a comment that says how to submit it."""
    if as_json:
        print_json(scripts)
        return
    scheduler = SCHEDULERS[scripts.scheduler]
    sign = "< " if scheduler.takes_input else ""
    submit = shlex.join(scheduler.submit)
    typer.echo(
        f"# ==== pre-job, after mkdir -p {shlex.quote(scripts.logs)}: {submit} {sign}build.sh"
    )
    typer.echo(scripts.prejob)
    if scripts.training is not None:
        after = shlex.join([*scheduler.submit, *scheduler.after("JOB", scripts.waits_for)])
        typer.echo(f"# ==== training, after it: {after} {sign}train.sh\n{scripts.training}")


def slurm_scripts_command(
    directory: Annotated[
        Path,
        typer.Argument(callback=path_only, help="Directory for them, which is made if missing."),
    ],
) -> None:
    """Copy the job scripts that come with distcache, to be changed for your cluster.

    They build a cache, localize it and start training, and set up nodes (prolog and epilog).

    Examples
    --------
        distcache slurm-scripts ~/jobs
    """
    source = next((place for place in SCRIPTS if place.is_dir()), None)
    if source is None:
        raise ConfigError(f"{SCRIPTS[0]}: this installation has no job scripts; install it again")
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory}: is not a directory")
    names = sorted(os.listdir(source))
    there = [directory / name for name in names if os.path.lexists(directory / name)]
    if there:
        raise ConfigError(*(f"{path}: exists already; name another directory" for path in there))
    with may_write(directory, "name another directory"):
        make_directories(directory)
        for name in names:
            # Slurm runs prologs and epilogs; all are to be changed.
            mode = (source / name).stat().st_mode | stat.S_IWUSR
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "wb") as copy:
                copy.write((source / name).read_bytes())
            typer.echo(str(directory / name))


def _show(done: Submitted) -> None:
    typer.echo(f"cache      {done.cache}")
    typer.echo(f"key        {done.key}")
    if (prejob := done.prejob) is None:
        typer.echo("pre-job    none: the cache exists")
    else:
        asked = prejob.options
        shape = f"{counted(asked.nodes, 'node')} with {counted(asked.tasks_per_node, 'rank')} each"
        limits = f"--time={asked.minutes} --mem={asked.memory}"
        limits = f"--mpi={asked.mpi} {limits}" if done.scheduler == "slurm" else limits
        typer.echo(f"pre-job    {prejob.job}: {shape}, {limits}")
        typer.echo(f"its log    {prejob.logs}/{prejob.job}*")
    if done.training is not None:
        after = "" if prejob is None else f", after {prejob.job} has succeeded"
        typer.echo(f"training   {done.training}{after}")


def _follow(done: Submitted, prejob: Prejob, progress: Progress) -> None:
    """Wait for the pre-job, and raise the error of its ranks if it fails."""
    interrupt_on_signals(f"pre-job {prejob.job} continues; scancel {prejob.job} ends it")
    log = Path(prejob.logs) / f"{prejob.job}.log"
    try:
        job = job_class()(folder=prejob.logs, job_id=prejob.job)
        state = follow(job, log, progress.note)
    except ConfigError as never:
        jobs = [prejob.job, *([] if done.training is None else [done.training])]
        with contextlib.suppress(DistcacheError):
            call(["scancel", *jobs])
        raise ConfigError(*never.problems, f"cancelled job {' and '.join(jobs)}") from never
    if state != "COMPLETED":
        error = failure(prejob.job, log, state)
        if done.training is None:
            raise error
        left = f"training job {done.training} never starts: Slurm cancels it"
        raise type(error)(*error.problems, left)
    end = time.monotonic() + limits().visible
    while not is_finished(Path(done.cache), done.key):
        if time.monotonic() < end:
            time.sleep(1)
            continue
        raise DistcacheError(
            f"{done.cache}: pre-job {prejob.job} has succeeded, but the cache is not to be seen "
            "here; is the directory shared?"
        )


def doctor_command(
    context: typer.Context,
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR -- COMMAND]",
            callback=path_only,
            help="A directory that `export` or `localize --megatron` wrote, and the training "
            "command that is to find its files, in words or as @FILE.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find what would break a first job. Run it where training runs, in its container.

    With a directory and a training command, doctor asks this environment's Megatron for its file
    names, and shows which field of a missing name differs. Nothing is built. Exit code 5 if
    anything is missing or cannot work.

    Examples
    --------
        distcache doctor

        distcache doctor /shared/megatron-cache -- torchrun pretrain_gpt.py --data-path ...

    """
    findings = list(examine_machine(os.environ))
    document: dict[str, Any] = {}
    if directory is not None:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: is not a directory; give one before the command")
        # Where there is no network, a tokenizer that is not here would be waited for.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        if not context.args:
            raise ConfigError("give the training command after the directory and --, or as @FILE")
        require_command(context.args)
        found, files = examine_training(context.args, directory)
        findings += found
        document["files"] = files
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        print_json({"ready": not problems, "findings": findings} | document)
    else:
        for finding in findings:
            typer.echo(f"{finding.level:8} {finding.topic}: {finding.text}")
    if problems:
        raise NotReady(f"{counted(len(problems), 'problem')}: a job would fail, or build by itself")
