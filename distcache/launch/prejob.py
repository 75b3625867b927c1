"""The pre-job: its options, its tasks, and its files.

submitit writes the batch script and a pickle that names `Task` and its arguments. The tasks load it
from a directory that nobody else can replace, and then become ``distcache build``: signals, exit
codes and messages are that command's own, and no result is ever pickled.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import xxhash

from distcache.errors import BuildInterrupted, ConfigError, DistcacheError, NotReady
from distcache.extras import how_to_install
from distcache.launch.schedulers.scheduler import signal_delay
from distcache.launch.scripts import RESTARTS
from distcache.launch.slurm import parse_minutes, without_variables
from distcache.option import Option
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import Stalled, run_with_watchdog

if TYPE_CHECKING:
    from submitit import SlurmExecutor

START: Final = "starting "  # begins the first line of every rank, each time it starts
OPTION: Final = re.compile(r"--(?P<name>[a-z][a-z0-9-]*)(=(?P<value>.*))?")
# Options of the job's files, by which it is followed.
OURS: Final = "array chdir error input output parsable wrap"
# Options whose place others take, besides those of the same name.
REPLACED: Final = {
    "mem-per-cpu": "mem",
    "mem-per-gpu": "mem",
    "ntasks": "ntasks-per-node",
    "no-requeue": "requeue",
}
NONE: Final = ("", "none", "default")  # of memory: what the site gives
# With these variables, and those of given options, sbatch would override the script.
OVERRULING: Final = (
    "ARRAY_INX EXPORT JOB_NAME NO_REQUEUE OPEN_MODE REQUEUE SIGNAL TIMELIMIT MEM_PER_CPU "
    "MEM_PER_GPU MEM_PER_NODE"
)
AS_FOR_SBATCH: Final = "The pre-job's; as for sbatch."


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the pre-job asks the scheduler for."""

    nodes: Annotated[int, Option("Nodes of the pre-job.", "--nodes -N", least=1, most=10_000)] = 1
    tasks_per_node: int = 8  # each is a rank
    cpus_per_task: Annotated[
        int,
        Option("Threads of each rank of the pre-job.", "--cpus-per-task -c", least=1, most=1024),
    ] = 1
    partition: Annotated[str | None, Option(AS_FOR_SBATCH, "--partition -p --queue")] = None
    account: Annotated[str | None, Option(AS_FOR_SBATCH, "--account -A")] = None
    qos: Annotated[str | None, Option(AS_FOR_SBATCH, "--qos -q")] = None
    constraint: Annotated[str | None, Option(AS_FOR_SBATCH, "--constraint -C")] = None
    minutes: Annotated[
        int | None,
        Option(
            "Time limit of the pre-job, as for sbatch; by default estimated.",
            "--time -t",
            parse_minutes,
        ),
    ] = None
    memory: Annotated[
        str | None,
        Option(
            "Memory of each node of the pre-job; by default estimated. none: what the site gives.",
            "--mem",
        ),
    ] = None
    mpi: Annotated[
        str | None,
        Option("Plugin of srun; by default the one that mpi4py's MPI library uses."),
    ] = None
    sbatch: Annotated[
        tuple[str, ...],
        Option(
            "Any directive of the scheduler for the pre-job, as in --directive=--gres=gpu:1 or "
            "--directive='-pe orte 8'. It takes the place of one that distcache writes; "
            "--directive=--NAME= leaves that one out.",
            "--directive --sbatch",
        ),
    ] = ()
    srun: Annotated[
        tuple[str, ...],
        Option("Any option of the pre-job's srun, as in --srun=--container-image=IMAGE."),
    ] = ()


class JobFiles(msgspec.Struct, frozen=True):
    """The directory of a pre-job's files, and its number."""

    directory: Path
    job: str

    @property
    def first_log(self) -> Path:
        """The standard error of rank 0 and of the batch script."""
        return self.directory / f"{self.job}_0_log.err"

    def logs(self) -> list[Path]:
        """Return the standard error of all ranks that have started."""
        named = re.compile(rf"{self.job}_(\d+)_log\.err")
        found = {path: named.fullmatch(path.name) for path in self.directory.iterdir()}
        ranks = {path: int(match.group(1)) for path, match in found.items() if match}
        return sorted(ranks, key=ranks.__getitem__)


class Task:
    """A task of the job, which becomes a rank of ``distcache`` with these arguments."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def __call__(self) -> NoReturn:
        """Replace this process; it keeps what srun has set up for MPI."""
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURMD_NODENAME", "SLURM_JOB_ID")
        rank, ranks, node, job = (os.environ.get(name, "?") for name in names)
        again = os.environ.get("SLURM_RESTART_COUNT", "0")
        where = f"rank {rank} of {ranks} on {node}, job {job}, restarted {again} times"
        sys.stderr.write(f"{START}{where}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        # -P: nothing is imported from the directory that the job was submitted in.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "distcache", *self.words])  # noqa: S606


def make_executor(directory: Path, cache: Path, options: JobOptions) -> SlurmExecutor:
    """Return the submitit executor of a pre-job.

    Raises
    ------
    ConfigError
        If there is no submitit, or no Slurm.
    """
    try:
        from submitit import SlurmExecutor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"submitting needs submitit ({error}): {how_to_install('slurm')}"
        ) from error
    given = sbatch_parameters(options.sbatch)

    class Replacing(SlurmExecutor):
        """Writes batch scripts in which given options take the place of submitit's."""

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return with_parameters(super()._make_submission_file_text(command, uid), given)

    try:
        executor = Replacing(directory, python=f"{shlex.quote(sys.executable)} -P")
    except RuntimeError as error:
        raise ConfigError("srun: not found; run this where Slurm's commands are") from error
    assert options.minutes is not None
    srun = [f"--mpi={options.mpi}", "--kill-on-bad-exit=1"]
    # Since Slurm 22.05 a step does not have the CPUs per task of its job unless it asks for them.
    srun += [f"--cpus-per-task={options.cpus_per_task}", *options.srun]
    executor.update_parameters(
        job_name="distcache",
        nodes=options.nodes,
        ntasks_per_node=options.tasks_per_node,
        cpus_per_task=options.cpus_per_task,
        time=options.minutes,
        mem=None if options.memory in NONE else options.memory,
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
        wckey=None,  # submitit's own name, which a site may not know
        signal_delay_s=signal_delay(options.minutes),
        srun_args=srun,
        setup=["trap : USR1 USR2  # those of --signal end the ranks, which requeue this job below"],
        teardown=_end_of_script(cache),
        additional_parameters={"requeue": True},
    )
    return executor


def with_parameters(script: str, parameters: Mapping[str, str | None]) -> str:
    """Return a batch script with options of sbatch in the place of those that it has.

    Parameters
    ----------
    script : str
        Text of the batch script, as submitit writes it.
    parameters : mapping of str to str or None
        Result of `sbatch_parameters`: an empty value leaves the option out, None is an
        option without a value.
    """
    dropped = {*parameters, *(REPLACED[name] for name in parameters if name in REPLACED)}
    own = re.compile(r"#SBATCH --([a-z-]+)")
    lines = []
    for line in script.splitlines():
        found = own.match(line)
        if found is None or found[1] not in dropped:
            lines.append(line)
    given = [
        f"#SBATCH --{name}" + ("" if value is None else f"={shlex.quote(value)}")
        for name, value in parameters.items()
        if value != ""
    ]
    place = max(number for number, line in enumerate(lines) if own.match(line)) + 1
    return "\n".join([*lines[:place], *given, *lines[place:]])


def sbatch_parameters(words: Sequence[str]) -> dict[str, str | None]:
    """Return options of sbatch as names and values, None without one, for the batch script.

    Raises
    ------
    ConfigError
        If one is not ``--name`` or ``--name=value``, or names the job's files.
    """
    found: dict[str, str | None] = {}
    problems = []
    for word in words:
        match = OPTION.fullmatch(word)
        if match is None or not word.isprintable():
            problems.append(
                f"--directive {word!r}: expected an option of sbatch, such as --gres=gpu:1"
            )
        elif match["name"] in OURS.split():
            problems.append(f"--directive {word!r}: distcache finds the job's files by this one")
        else:
            found[match["name"]] = match["value"]
    if problems:
        raise ConfigError(*problems)
    return found


def _end_of_script(cache: Path) -> list[str]:
    """Return the end of the batch script, which requeues the job after an interruption.

    Dependent jobs then keep waiting. Slurm does the same for jobs that it preempts.
    """
    return [
        "code=$?",
        # srun may return 0 although a task has not run.
        f'[ "$code" -eq 0 ] && [ ! -e {shlex.quote(str(cache))} ] && code={NotReady.exit_code}',
        f'if [ "$code" -eq {BuildInterrupted.exit_code} ] '
        f'&& [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RESTARTS} ]; then',
        '    echo "distcache was interrupted; requeueing job $SLURM_JOB_ID, which resumes" >&2',
        '    scontrol requeue "$SLURM_JOB_ID" && sleep 60',  # until that ends this script
        "fi",
        'exit "$code"',
    ]


def submit_prejob(directory: Path, words: list[str], cache: Path, options: JobOptions) -> JobFiles:
    """Submit a command of distcache as a job.

    Parameters
    ----------
    directory : Path
        Directory for the job's files, without links; made if it does not exist.
    words : list of str
        Arguments of the command.
    cache : Path
        Exists if the job has succeeded.
    options : JobOptions
        Resources to ask for.

    Raises
    ------
    ConfigError
        If others could replace the directory, if Slurm would misread its path or an option, or if
        submitit or Slurm are missing.
    DistcacheError
        In Slurm's words, if it refuses the job.
    """
    _require_plain(directory, options)
    make_private(directory)
    executor = make_executor(directory, cache, options)
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

    given = ("partition", "account", "qos", "constraint")
    hidden = [*OVERRULING.split(), *(name.upper() for name in given if getattr(options, name))]
    try:
        with without_variables([f"SBATCH_{name}" for name in hidden]):
            job = run_with_watchdog(
                lambda: executor.submit(Task(words)), limits().command, "sbatch"
            )
    except Stalled as error:
        raise DistcacheError(
            f"sbatch: no answer for {limits().command:.0f} s; the job may be submitted "
            "nevertheless: see squeue --me"
        ) from error
    except (FailedJobError, FailedSubmissionError) as error:
        raise DistcacheError(f"sbatch: {error}") from error
    return JobFiles(directory, job.job_id)


def _require_plain(directory: Path, options: JobOptions) -> None:
    """Refuse paths and options that Slurm or the batch script would misread."""
    problems = []
    text = str(directory)
    if not text.isprintable() or any(sign in text for sign in "%\\"):
        problems.append(
            f"{text!r}: Slurm misreads % and \\ in the paths of logs, and unprintable characters; "
            "choose another --name, or a directory with --logs"
        )
    given = msgspec.structs.asdict(options)
    values = [(name, value) for name, value in given.items() if not isinstance(value, tuple)]
    values += [("srun", word) for word in options.srun]
    for name, value in values:
        if isinstance(value, str) and not (value.isprintable() and value.strip()):
            problems.append(f"{name} {value!r}: expected printable text")
    if problems:
        raise ConfigError(*problems)


def make_private(directory: Path) -> None:
    """Make a directory that nobody else can replace, or check that it is one.

    The job executes what is in it. So only this user and root may write to it and to its parents,
    except to parents with the sticky bit (as ``/tmp``). Its path has no links, which could be
    replaced.

    Raises
    ------
    ConfigError
        If it is not.
    """
    _require_own(directory)
    for parent in reversed(directory.parents):
        parent.mkdir(mode=0o755, exist_ok=True)  # whatever the umask lets a group write to
    directory.mkdir(mode=0o700, exist_ok=True)
    _require_own(directory)


def _require_own(directory: Path) -> None:
    if (wrong := exchangeable(directory)) is not None:
        raise ConfigError(
            f"{directory}: {wrong} is not a directory that only you can write to, so that others "
            "could exchange what the job executes; name another directory with --logs"
        )


def exchangeable(directory: Path) -> Path | None:
    """Return the first part of a path without links that others could replace, or None.

    Parts that do not exist yet will be this user's.
    """
    for place in (directory, *directory.parents):
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            continue
        mine = found.st_uid in (os.geteuid(), 0)
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = found.st_mode & stat.S_ISVTX and place != directory
        if not mine or not stat.S_ISDIR(found.st_mode) or (others and not sticky):
            return place
    return None


def job_directory(cache: Path) -> Path:
    """Return the directory of a pre-job's files: beside the cache, if it is safe there."""
    beside = Path(os.path.realpath(cache.with_suffix(".jobs")))
    if exchangeable(beside) is None:
        return beside
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(cache))
    return Path.home() / ".distcache" / "jobs" / f"{cache.stem}-{digest}"
