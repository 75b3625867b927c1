"""What all benchmarks share: rounds in turn, a process for each case, medians with their spread.

A benchmark is a module with `MARKS`, the names of its tables in README.md, and ``tables(run)``,
which yields them. `JUDGE` names what `scripts/judges` unpacks for its peers. Only processes of
cases import peers: ``process(function, ...)`` runs a function of a module in one.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

TOP = Path(__file__).resolve().parents[1]
BOOK = TOP / "benchmarks" / "README.md"
PEAK = "VmHWM"


class Table(NamedTuple):
    """A table of results."""

    mark: str  # name of its place in the laboratory book
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    rounds: int | None = None  # None: as many as were asked for; 0: nothing was measured


class Figures:
    """The figures of a case in all rounds: a median for each, and how far the rounds differ."""

    def __init__(self, rounds: Sequence[Mapping[str, float]]) -> None:
        self.rounds = rounds

    def __getitem__(self, name: str) -> float:
        return statistics.median(found[name] for found in self.rounds)

    def said(self, name: str, unit: str = "s", divisor: float = 1.0) -> str:
        """Return the median with a unit, and half of the span of all rounds in percent."""
        values = [found[name] / divisor for found in self.rounds]
        middle = statistics.median(values)
        digits = 0 if middle >= 100 else 1 if middle >= 10 else 2 if middle >= 0.1 else 4
        spread = 50 * (max(values) - min(values)) / middle if middle else 0.0
        return f"{middle:,.{digits}f} {unit}" + (f" ±{spread:.0f} %" if len(values) > 1 else "")


@dataclass(frozen=True)
class Run:
    """How much is measured, and where."""

    directory: Path  # an empty directory
    rounds: int
    scale: float  # factor of all sizes

    def size(self, usual: float) -> int:
        """Return a size, scaled."""
        return max(int(usual * self.scale), 1)

    def in_turn(self, cases: Mapping[str, Callable[[], Mapping[str, float]]]) -> dict[str, Figures]:
        """Run cases in turn, every second round backwards, and return the figures of each."""
        found: dict[str, list[Mapping[str, float]]] = {name: [] for name in cases}
        for number in range(self.rounds):
            for name in list(cases)[:: -1 if number % 2 else 1]:
                found[name].append(cases[name]())
                note(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in found[name][-1].items()))
        return {name: Figures(rounds) for name, rounds in found.items()}


def note(text: str) -> None:
    """Say how far it is."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def command(
    *words: object,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    said: list[str] | None = None,
) -> dict[str, float]:
    """Run a command; return its seconds, those of CPU, and the memory of its largest process."""
    program = [str(word) for word in words]
    program = [sys.executable, "-m", *program] if program[0] == "distcache" else program
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=output,
            cwd=directory,
            env={**os.environ, **(environment or {})},
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(program)[:400]}: ended with {process.returncode}")
        output.seek(0)
        if said is not None:
            said += output.read().decode().splitlines()
    cpu = used.ru_utime + used.ru_stime
    return {"seconds": seconds, "cpu": cpu, "memory": 1024.0 * used.ru_maxrss}


def process(
    function: Callable[..., Mapping[str, float]],
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[object] = (),
) -> dict[str, float]:
    """Run a function in a process of its own; return what `command` does, and what it returns."""
    words = [str(value) if isinstance(value, Path) else value for value in arguments]
    program = [sys.executable, "-m", "benchmarks.harness", function.__module__, function.__name__]
    said: list[str] = []
    found = command(
        *launcher, *program, json.dumps(words), environment=environment, directory=TOP, said=said
    )
    return found | json.loads(said[-1])


def timed(action: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of an action in this process, and those of CPU."""
    begin, cpu = time.perf_counter(), time.process_time()
    action()
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}


def peak_memory() -> int:
    """Return the most memory that this process has held, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition(f"{PEAK}:")[2].split()[0])


def cpu_here() -> float:
    """Return the seconds of CPU of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def require_equal(what: str, *values: Any) -> None:
    """End if values differ from the first."""
    if any(value != values[0] for value in values[1:]):
        sys.exit(f"{what} differs")


def factor(base: Figures, found: Figures, name: str = "seconds") -> str:
    """Return how many times less than another a case takes."""
    return f"{base[name] / found[name]:.1f}x"


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    aligned = ["---", *("--:" for _ in table.head[1:])]
    lines = [table.head, aligned, *table.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def commit() -> str:
    """Return the commit, with ``-dirty`` if the checkout has changes or other files."""
    at, changes = (
        subprocess.run(["git", *words], cwd=TOP, check=True, capture_output=True, text=True).stdout
        for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain"))
    )
    return at.strip() + ("-dirty" if changes else "")


def machine() -> str:
    """Return what this machine is."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kind = names[0] if names else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {kind}, {memory:.0f} GiB, Python {platform.python_version()}"


def caption(table: Table, run: Run, at: str) -> str:
    """Return what stands above a table: the commit, the machine, rounds and sizes."""
    if table.rounds == 0:
        return f"Simulated at {at}."
    rounds = run.rounds if table.rounds is None else table.rounds
    sizes = "" if run.scale == 1 else f", sizes: {run.scale:g} of the usual"
    return f"At {at}; {machine()}; rounds: {rounds}{sizes}."


def place_in(mark: str) -> tuple[str, str]:
    """Return the laboratory book before the place of a table, and after it, with the marks."""
    begin, end = f"<!-- benchmark {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, found, rest = BOOK.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{BOOK}: has no place for {mark}: {begin.strip()} and {end.strip()}")
    return before + begin, end + after


def publish(mark: str, text: str) -> None:
    """Write a text between the marks of its place in the laboratory book."""
    before, after = place_in(mark)
    BOOK.write_text(f"{before}{text}\n{after}", encoding="utf-8")


def main(arguments: Iterable[str]) -> None:
    """Run a function of a module, and write what it returns as the last line."""
    module, name, words = arguments
    found = getattr(importlib.import_module(module), name)(*json.loads(words))
    print(json.dumps({"held": peak_memory(), **found}), flush=True)
    os._exit(0)  # what is still read ahead is of no interest


if __name__ == "__main__":
    main(sys.argv[1:])
