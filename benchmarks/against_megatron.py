"""Megatron-Core and distcache build the same index arrays in turn, in one run.

The corpora are generated: log-normal lengths, sparse `.bin` files. Every array is compared. Times
are medians of alternating rounds; peak memory is the most of any process. The limit is what the
disk takes to write the cache, at the speed of `dd` with `conv=fsync`.

    python benchmarks/against_megatron.py  # 20 million documents in one corpus, in 800 and 2,400
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

import numpy as np
from corpora import generate
from machine import machine

HERE = Path(__file__).parent
SEQUENCE_LENGTH = 4096
MEAN_TOKENS = 600
MANY = (800, 2400)


def cases(work: Path, documents: int) -> dict[str, dict[str, Any]]:
    """Generate corpora, and return the configurations by name.

    One epoch of one corpus; a sample for every second document of it, which takes four epochs; and
    blends by weight of many corpora with as many documents together.
    """
    generate(work / "corpus", documents, MEAN_TOKENS, seed=1)
    one: list[dict[str, Any]] = [{"path": str(work / "corpus")}]
    per_epoch = int(documents * MEAN_TOKENS * 0.98) // SEQUENCE_LENGTH
    found = {
        "1 epoch": configuration(one, "1", per_epoch),
        "4 epochs": configuration(one, "1", documents // 2),
    }
    for count in MANY:
        random = np.random.default_rng(0)
        many = many_corpora(work / str(count), count, documents // count, random)
        found[f"{count} corpora"] = configuration(many, "98,1,1", per_epoch, per_epoch // 100)
        found[f"{count} corpora, {documents // 2:,} samples"] = configuration(
            [source | {"weight": float(random.lognormal(0, 1.5))} for source in many],
            "1",
            documents // 2,
        )
    return found


def many_corpora(
    directory: Path, count: int, documents: int, random: np.random.Generator
) -> list[dict[str, Any]]:
    """Generate corpora of so many documents each, and return a blend of them."""
    directory.mkdir()
    paths = [directory / f"corpus-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        generate(path, documents, MEAN_TOKENS, seed=number)
    return [{"path": str(path), "weight": float(random.lognormal(0, 1))} for path in paths]


def configuration(
    blend: list[dict[str, Any]], split: str, train: int, others: int = 0
) -> dict[str, Any]:
    """Return the fields of a configuration."""
    return {
        "sequence_length": SEQUENCE_LENGTH,
        "seed": 1234,
        "split": split,
        "mid_level_dataset_surplus": 0.5,  # so that small splits of many corpora do not run short
        "samples": {"train": train, "valid": others, "test": others},
        "blend": blend,
        "tokenizer": {"class": "NullTokenizer"},
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


def run_distcache(config: Path, directory: Path, ranks: int, threads: int) -> dict[str, Any]:
    """Let distcache build into a directory; its builder is all of a rank but its start."""
    command = ["distcache", "build", str(config), "-o", str(directory), "--name", "cache"]
    command += ["--threads", str(threads)]
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    found = timed([*launcher, *command, "--log-format", "none"])
    record = json.loads((directory / "cache.h5.build.json").read_text(encoding="utf-8"))
    found["phases"] = record["ranks"][0]["seconds"]
    found["builder"] = sum(found["phases"].values())
    found["memory"] = max(rank["peak_memory"] for rank in record["ranks"])
    found["bytes"] = (directory / "cache.h5").stat().st_size
    return found


def disk_speed(work: Path, nbytes: int) -> float:
    """Return the bytes per second at which dd writes to the same disk, and syncs."""
    path = work / "dd"
    blocks = max(nbytes >> 23, 1)
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=8M", f"count={blocks}", "conv=fsync"]
    seconds = timed(command)["process"]
    path.unlink()
    return (blocks << 23) / float(seconds)


def require_equal(cache: Path, exported: Path, theirs: Path) -> None:
    """Compare every file that Megatron wrote with what distcache exports."""
    subprocess.run(
        ["distcache", "export", str(cache), "-o", str(exported)], check=True, capture_output=True
    )
    for path in theirs.iterdir():
        if (exported / path.name).read_bytes() != path.read_bytes():
            sys.exit(f"{path.name} differs")


def measure(config: Path, work: Path, rounds: int) -> dict[str, Any]:
    """Run all contenders in turn; return the medians of each, and what opening the cache takes."""
    contenders = {
        "megatron-core": lambda directory: run_megatron(config, directory),
        "distcache, 1 rank, 1 thread": lambda directory: run_distcache(config, directory, 1, 1),
        "distcache, 1 rank, 2 threads": lambda directory: run_distcache(config, directory, 1, 2),
        "distcache, 2 ranks, 1 thread": lambda directory: run_distcache(config, directory, 2, 1),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        directories = {name: work / name.replace(" ", "-") for name in contenders}
        for name, run in contenders.items():
            shutil.rmtree(directories[name], ignore_errors=True)
            runs[name].append(run(directories[name]))
    ours = [path / "cache.h5" for name, path in directories.items() if "distcache" in name]
    if len({path.read_bytes() for path in ours}) != 1:
        sys.exit("the caches differ from one another")
    require_equal(ours[0], work / "exported", directories["megatron-core"])
    nbytes = runs["distcache, 1 rank, 1 thread"][0]["bytes"]
    limit = nbytes / statistics.median(disk_speed(work, nbytes) for _ in range(rounds))
    openings = [opening(ours[0]) for _ in range(5)]
    for directory in [*directories.values(), work / "exported"]:
        shutil.rmtree(directory)
    figures = ("builder", "process", "memory")
    medians = {
        name: {figure: statistics.median(run[figure] for run in found) for figure in figures}
        | {"phases": found[-1].get("phases", {})}
        for name, found in runs.items()
    }
    fastest = min(openings, key=lambda found: found["all arrays"])
    return {"contenders": medians, "opening": fastest, "limit": limit}


def opening(cache: Path) -> dict[str, float]:
    """Open a cache in a new process."""
    found: dict[str, float] = json.loads(
        timed([sys.executable, str(HERE / "opening.py"), str(cache)])["output"]
    )
    return found


def rows(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the Markdown tables."""
    yield "| case | | builder | | whole process | | peak memory | | limit of the disk |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for case, result in results.items():
        base = result["contenders"]["megatron-core"]
        for name, found in result["contenders"].items():
            cells = [case, name]
            for figure, unit, scale in (
                ("builder", "s", 1),
                ("process", "s", 1),
                ("memory", "GiB", 2**30),
            ):
                cells.append(f"{found[figure] / scale:.2f} {unit}")
                cells.append(f"{base[figure] / found[figure]:.1f}x")
            yield f"| {' | '.join(cells)} | {result['limit']:.2f} s |"
    yield ""
    yield "| opening | arrays | open files | mappings | header and tables | views of all arrays |"
    yield "|---|--:|--:|--:|--:|--:|"
    for case, result in results.items():
        found = result["opening"]
        counts = " | ".join(str(found[name]) for name in ("arrays", "open files", "mappings"))
        times = " | ".join(f"{found[name] * 1000:.1f} ms" for name in ("open", "all arrays"))
        yield f"| {case} | {counts} | {times} |"


def main() -> None:
    """Generate the corpus, measure every case, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where to work; removed at the end")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        work = Path(name)
        results = {}
        for case, fields in cases(work, options.documents).items():
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
