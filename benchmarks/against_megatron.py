"""Megatron-Core and distcache build the same index arrays in turn, in one run.

The corpora are generated: log-normal lengths, sparse `.bin` files. Every array is compared. Times
are medians of alternating rounds; peak memory is the most of any process.

    python benchmarks/against_megatron.py                     # one corpus of 20 million documents
    python benchmarks/against_megatron.py --documents 2000000 --rounds 1 --json
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora import generate
from machine import machine

HERE = Path(__file__).parent
SEQUENCE_LENGTH = 4096
MEAN_TOKENS = 600


def cases(prefix: str, documents: int) -> dict[str, dict[str, Any]]:
    """Return the configurations: one epoch; and a sample for every second document, 4 epochs."""
    common = {
        "sequence_length": SEQUENCE_LENGTH,
        "seed": 1234,
        "split": "1",
        "tokenizer": {"class": "NullTokenizer"},
    }
    per_epoch = int(documents * MEAN_TOKENS * 0.98) // SEQUENCE_LENGTH
    one = {"train": per_epoch, "valid": 0, "test": 0}
    four = {"train": documents // 2, "valid": 0, "test": 0}
    return {
        "1 epoch": {**common, "samples": one, "blend": [{"path": prefix}]},
        "4 epochs": {**common, "samples": four, "blend": [{"path": prefix}]},
    }


def timed(command: list[str]) -> dict[str, Any]:
    """Run a command, and return its seconds and its output."""
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return {"process": seconds, "output": done.stdout}


def run_megatron(config: Path, directory: Path) -> dict[str, Any]:
    """Let Megatron-Core build into a directory."""
    found = timed([sys.executable, str(HERE / "peer.py"), str(config), str(directory)])
    return found | json.loads(found["output"].splitlines()[-1])


def run_distcache(config: Path, directory: Path, ranks: int) -> dict[str, Any]:
    """Let distcache build into a directory; its builder is all of a rank but its start."""
    command = ["distcache", "build", str(config), "-o", str(directory), "--name", "cache"]
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    found = timed([*launcher, *command, "--log-format", "none"])
    record = json.loads((directory / "cache.h5.build.json").read_text(encoding="utf-8"))
    found["phases"] = record["ranks"][0]["seconds"]
    found["builder"] = sum(found["phases"].values())
    found["memory"] = max(rank["peak_memory"] for rank in record["ranks"])
    return found


def require_equal(cache: Path, exported: Path, theirs: Path) -> None:
    """Compare every file that Megatron wrote with what distcache exports."""
    subprocess.run(
        ["distcache", "export", str(cache), "--to", str(exported)], check=True, capture_output=True
    )
    for path in theirs.iterdir():
        if (exported / path.name).read_bytes() != path.read_bytes():
            sys.exit(f"{path.name} differs")


def measure(config: Path, work: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Run all contenders in turn, and return the median of each figure of each."""
    contenders = {
        "megatron-core": lambda directory: run_megatron(config, directory),
        "distcache, 1 rank": lambda directory: run_distcache(config, directory, 1),
        "distcache, 2 ranks": lambda directory: run_distcache(config, directory, 2),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        directories = {name: work / name.replace(" ", "-") for name in contenders}
        for name, run in contenders.items():
            shutil.rmtree(directories[name], ignore_errors=True)
            runs[name].append(run(directories[name]))
    ours = directories["distcache, 2 ranks"] / "cache.h5"
    require_equal(ours, work / "exported", directories["megatron-core"])
    for directory in [*directories.values(), work / "exported"]:
        shutil.rmtree(directory)
    figures = ("builder", "process", "memory")
    return {
        name: {figure: statistics.median(run[figure] for run in found) for figure in figures}
        | {"phases": found[-1].get("phases", {})}
        for name, found in runs.items()
    }


def rows(results: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| case | | builder | | whole process | | peak memory | |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for case, contenders in results.items():
        base = contenders["megatron-core"]
        for name, found in contenders.items():
            cells = [case, name]
            for figure, unit, scale in (
                ("builder", "s", 1),
                ("process", "s", 1),
                ("memory", "GiB", 2**30),
            ):
                cells.append(f"{found[figure] / scale:.2f} {unit}")
                cells.append(f"{base[figure] / found[figure]:.1f}x")
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Generate the corpus, measure every case, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to work; removed at the end")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        work = Path(name)
        prefix = generate(work / "corpus", options.documents, MEAN_TOKENS, seed=1)
        results = {}
        for case, fields in cases(prefix, options.documents).items():
            config = work / "config.json"
            config.write_text(json.dumps(fields), encoding="utf-8")
            results[case] = measure(config, work, options.rounds)
        facts = machine(work) | {"documents": f"{options.documents:,}"}
    if options.json:
        print(json.dumps({"machine": facts, "results": results}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
