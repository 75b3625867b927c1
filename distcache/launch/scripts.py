"""Batch scripts: one that builds a cache, and one that trains when it exists."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from distcache.errors import BuildInterrupted, ConfigError, DistcacheError, NotReady
from distcache.launch.commands import call
from distcache.launch.schedulers.known_schedulers import SCHEDULERS
from distcache.launch.schedulers.scheduler import Scheduler, Shape, with_directives
from distcache.storage.files import atomic_write, is_plain_file, read_text

CACHE_VARIABLE: Final = "DISTCACHE_CACHE"
WAIT: Final = 60  # seconds in which a cache that was built on other nodes is to be seen
RESTARTS: Final = 3
MARK: Final = "# written by distcache submit"
START: Final = "==== started on"  # begins what a job writes, each time it starts
MODULE: Final = ("-P", "-m", "distcache")  # -P: nothing of the directory of the submission
SHELL: Final = re.compile(r"#![ \t]*\S*(/|env[ \t]+(-S[ \t]*)?)(ba|da|k|z)?sh([ \t]|\n|$)")


def build_script(
    scheduler: Scheduler, shape: Shape, words: Sequence[str], cache: Path, given: Sequence[str] = ()
) -> str:
    """Return the batch script of a job that builds a cache.

    Parameters
    ----------
    scheduler : Scheduler
        The scheduler.
    shape : Shape
        Resources of the job.
    words : sequence of str
        Arguments of distcache that every rank gets.
    cache : Path
        Exists if the job has succeeded.
    given : sequence of str
        Directives that take the place of those that are written.

    Raises
    ------
    ConfigError
        If a directive is empty, or a time limit that the signal before it would not follow; if a
        word has characters that a script cannot have in a line.
    """
    _require_printable([*words, str(cache), *shape.texts(), *given])
    _require_directives(scheduler, given)
    placed = [scheduler.read_directive(directive) for directive in given]
    directives = with_directives(scheduler.directives(shape), placed, scheduler.replaced)
    program = shape.program or (sys.executable, *MODULE)
    command = shlex.join([*scheduler.launch(shape), *program, *words])
    # The exit code of the ranks decides what comes next, whatever the setup has set.
    setup = [*shape.setup.rstrip("\n").split("\n"), "set +e"] if shape.setup else []
    if wrong := [line for line in setup if scheduler.directive(line) is not None]:
        raise ConfigError(f"--setup: {wrong[0]!r}: give a directive with --directive")
    lines = [
        "#!/bin/bash",
        *(f"{scheduler.prefix} {directive}" for directive in directives),
        "",
        MARK,
        "# These signals are for the ranks; this script acts on their exit code. SIGTERM ends it.",
        "trap signalled=1 USR1 USR2",
        f'echo "{START} $HOSTNAME" >&2',
        *filter(None, [scheduler.enter]),
        *setup,
        command,
        *_end(scheduler, shape, cache),
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _require_directives(scheduler: Scheduler, given: Sequence[str]) -> None:
    for directive in given:
        if not directive.strip():
            raise ConfigError("--directive: is empty")
        resources = re.split(r"-l|[\s,]+", directive) if directive.startswith("-l") else []
        if any(resource.startswith(scheduler.limits) for resource in resources):
            raise ConfigError(
                f"--directive {directive!r}: give the limit with --time, which also sets when the "
                "job is interrupted before it"
            )


def _end(scheduler: Scheduler, shape: Shape, cache: Path) -> list[str]:
    """Return the lines after the ranks have ended: is the cache there, does the job run again."""
    code = BuildInterrupted.exit_code
    nothing = f"distcache: {cache}: is not there, though all ranks have succeeded"
    lines = [
        "code=$?",
        "# A launcher may have killed a rank that was interrupted, too, and say that instead.",
        f'[ "$code" -gt {code} ] && [ -n "${{signalled-}}" ] && code={code}',
        f'if [ "$code" -eq 0 ] && [ ! -e {shlex.quote(str(cache))} ]; then',
        f"    echo {shlex.quote(nothing)} >&2",
        f"    code={NotReady.exit_code}",
        "fi",
    ]
    if scheduler.requeue:
        # A line for each start of this job that was interrupted.
        starts = shlex.quote(str(shape.logs / f"{cache.stem}-restarts-"))
        starts += f'"${scheduler.number}"'
        lines += [
            f'if [ "$code" -eq {code} ] && echo again >>{starts} '
            f"&& [ $(wc -l <{starts}) -le {RESTARTS} ]; then",
            '    echo "distcache was interrupted; the job starts again, and resumes" >&2',
            f"    {scheduler.requeue}",
            "fi",
            f"rm -f {starts}",
        ]
    else:
        text = "distcache was interrupted; submit again to resume"
        lines.append(f'[ "$code" -eq {code} ] && echo "{text}" >&2')
    return lines


def read_script(path: str) -> str:
    """Return the text of a shell script that trains.

    Raises
    ------
    NotReady
        If there is no such script.
    ConfigError
        If it is no shell script.
    """
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such script") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not SHELL.match(text):
        raise ConfigError(f"{path}: is no shell script, which starts with a line like #!/bin/bash")
    if _is_own(text):
        raise ConfigError(f"{path}: was written by distcache; give the script it was made from")
    return text


def training_script(text: str, words: Sequence[str], cache: Path) -> str:
    """Return a training script that first makes sure that the cache is there.

    Some schedulers start a job although the previous one has failed, and some take no arguments
    or variables with a script: these are written into it, after its directives.

    Parameters
    ----------
    text : str
        A shell script.
    words : sequence of str
        Arguments of the script.
    cache : Path
        The script finds its path in ``DISTCACHE_CACHE``.

    Raises
    ------
    ConfigError
        If an argument has characters that a script cannot have in a line.
    """
    _require_printable([*words, str(cache)])
    lines = text.removesuffix("\n").split("\n")  # other signs end no line of a shell
    head = list(itertools.takewhile(_is_comment, lines))
    path = shlex.quote(str(cache))
    missing = shlex.quote(f"{cache}: is not there; see the log of the job that builds it")
    gate = [
        MARK,
        f"export {CACHE_VARIABLE}={shlex.quote(str(cache))}",
        f"for _ in $(seq {WAIT}); do [ -e {path} ] && break; sleep 1; done",
        f"[ -e {path} ] || {{ echo {missing} >&2; exit {NotReady.exit_code}; }}",
        *([shlex.join(["set", "--", *words])] if words else []),
    ]
    return "\n".join([*head, *gate, *lines[len(head) :]]) + "\n"


def own_dependency(scheduler: Scheduler, name: str, text: str) -> str:
    """Return what a training script waits for by its own directive; empty if for nothing.

    Raises
    ------
    ConfigError
        If it cannot also wait for the pre-job; or if it only has directives of other schedulers,
        so that its job would have the queue's defaults.
    """
    found: list[tuple[int, str]] = []
    foreign, directives = "", 0
    read = [scheduler, *scheduler.also_reads]
    lines = text.split("\n")
    head = lines if scheduler.reads_all else itertools.takewhile(_is_comment, lines)
    for number, line in enumerate(head, 1):
        reader = next((known for known in read if known.directive(line) is not None), None)
        if reader is None:
            texts = (known.directive(line) or "" for known in SCHEDULERS.values())
            if any(text.lstrip().startswith("-") for text in texts):
                foreign = foreign or f"{name}:{number}: {line!r}"
            continue
        directives += 1
        wanted = _waited_for(reader, f"{name}:{number}: {line!r}", line)
        if wanted and reader is not scheduler:
            raise ConfigError(
                f"{name}:{number}: {line!r}: write the jobs to wait for in a line of "
                f"{scheduler.prefix}, where the pre-job can be added to them"
            )
        found += [(number, value) for value in wanted]
    if foreign and not directives:
        raise ConfigError(
            f"{foreign}: is not read by {scheduler.title}, and no other line is: write what the "
            f"job asks for in lines of {scheduler.prefix}, or name the other --scheduler"
        )
    if len(found) > 1:
        named = " and ".join(str(number) for number, _ in found)
        raise ConfigError(f"{name}: lines {named} name jobs to wait for; name all in one of them")
    if not found:
        return ""
    try:
        scheduler.after("0", found[0][1])  # refuses what cannot be joined
    except ConfigError as error:
        raise ConfigError(f"{name}:{found[0][0]}: {error}") from error
    return found[0][1]


def _waited_for(scheduler: Scheduler, where: str, line: str) -> list[str]:
    """Return the jobs that the directive of a line waits for, in its own words."""
    if not scheduler.waiting:
        return []
    try:
        words = shlex.split(scheduler.directive(line) or "")
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return re.findall(scheduler.waiting, "".join(f"\0{word}" for word in words))


def _is_comment(line: str) -> bool:
    """Return whether a scheduler continues to look for directives after a line."""
    return not line.strip() or line.lstrip().startswith("#")


def _require_printable(words: Iterable[str]) -> None:
    """Refuse what a script cannot say in one line, or a scheduler would read as a directive."""
    for word in words:
        if not word.isprintable():
            raise ConfigError(f"{word!r}: expected printable text, which a script can say")


def _is_own(text: str) -> bool:
    """Return whether a script was written by distcache."""
    return MARK in text.split("\n")


def require_own_script(path: Path) -> None:
    """Refuse to replace a file that is no script of distcache's.

    Raises
    ------
    ConfigError
        If one has the path.
    """
    if os.path.lexists(path) and not (
        is_plain_file(path) and _is_own(path.read_text("utf-8", "replace"))
    ):
        raise ConfigError(
            f"{path}: is not a script of distcache's; choose another --logs or --name"
        )


def submit_script(
    scheduler: Scheduler,
    path: Path,
    text: str,
    waiting: Sequence[str] = (),
    hidden: Collection[str] = (),
) -> str:
    """Write a batch script and submit it; return the job's number.

    Parameters
    ----------
    scheduler : Scheduler
        The scheduler.
    path : Path
        Path of the script, in a directory that nobody else can write to. A script that is not
        distcache's is not replaced.
    text : str
        The script.
    waiting : sequence of str
        Options of the scheduler's command that make the job wait for others.
    hidden : collection of str
        Variables that the scheduler's command does not get.

    Raises
    ------
    ConfigError
        If the scheduler's command is not here.
    DistcacheError
        In the scheduler's words, if it refuses the job.
    """
    require_own_script(path)
    with atomic_write(path) as stream:
        stream.write(text.encode("utf-8"))
    words = [*scheduler.submit, *waiting]
    if scheduler.takes_input:
        said = call(words, text, hidden)
    else:
        said = call([*words, str(path)], hidden=hidden)
    found = re.search(scheduler.job_pattern, said.strip(), re.MULTILINE)
    if found is None:
        raise DistcacheError(
            f"{scheduler.submit[0]}: says {said.strip()!r} instead of the number of a job"
        )
    return found[1]
