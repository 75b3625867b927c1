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
from distcache.launch.schedulers.scheduler import Scheduler, Shape, with_directives
from distcache.storage.files import atomic_write, is_plain_file

CACHE_VARIABLE: Final = "DISTCACHE_CACHE"
WAIT: Final = 60  # seconds in which a cache that was built on other nodes is to be seen
RESTARTS: Final = 3
MARK: Final = "# written by distcache submit"
START: Final = "==== started on"  # begins what a job writes, each time it starts
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
    # -P: nothing is imported from the directory that the job was submitted in.
    program = (sys.executable, "-P", "-m", "distcache")
    command = shlex.join([*scheduler.launch(shape), *program, *words])
    lines = [
        "#!/bin/bash",
        *(f"{scheduler.prefix} {directive}" for directive in directives),
        "",
        MARK,
        "# These signals are for the ranks; this script acts on their exit code. SIGTERM ends it.",
        "trap : USR1 USR2",
        f'echo "{START} $HOSTNAME" >&2',
        *filter(None, [scheduler.enter]),
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


def training_script(words: Sequence[str], cache: Path) -> str:
    """Return a training script that first makes sure that the cache is there.

    Some schedulers start a job although the one before it has failed, and some take no arguments
    or variables with a script: these are written into it, after its directives.

    Parameters
    ----------
    words : sequence of str
        A shell script and its arguments.
    cache : Path
        The script finds its path in ``DISTCACHE_CACHE``.

    Raises
    ------
    NotReady
        If there is no such script.
    ConfigError
        If it is no shell script.
    """
    _require_printable([*words[1:], str(cache)])
    try:
        with open(words[0], encoding="utf-8", newline="") as stream:
            text = stream.read()
    except FileNotFoundError as error:
        raise NotReady(f"{words[0]}: no such script") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{words[0]}: cannot be read: {error}") from error
    if not SHELL.match(text):
        raise ConfigError(
            f"{words[0]}: is no shell script, which starts with a line like #!/bin/bash"
        )
    if _is_own(text):
        raise ConfigError(
            f"{words[0]}: was written by distcache; give the script that it was made from"
        )
    lines = text.removesuffix("\n").split("\n")  # other signs end no line of a shell
    head = list(itertools.takewhile(_is_comment, lines))
    path = shlex.quote(str(cache))
    missing = shlex.quote(f"{cache}: is not there; see the log of the job that builds it")
    gate = [
        MARK,
        f"export {CACHE_VARIABLE}={shlex.quote(str(cache))}",
        f"for _ in $(seq {WAIT}); do [ -e {path} ] && break; sleep 1; done",
        f"[ -e {path} ] || {{ echo {missing} >&2; exit {NotReady.exit_code}; }}",
        *([shlex.join(["set", "--", *words[1:]])] if words[1:] else []),
    ]
    return "\n".join([*head, *gate, *lines[len(head) :]]) + "\n"


def _is_comment(line: str) -> bool:
    """Return whether a scheduler goes on looking for directives after a line."""
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
    after: str | None = None,
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
    after : str or None
        Number of the job that must have succeeded.
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
    waiting = [] if after is None else scheduler.after(after)
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
