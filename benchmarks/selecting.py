"""`distcache select` beside `cp` of the same `.idx`: a selection costs an index, and no tokens.

python benchmarks/selecting.py --documents 20000000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from corpora import generate
from machine import machine

CASES = {
    "all but the shortest": ["--min-length", "50"],
    "a tenth": ["--sample", "0.1"],
}


def seconds_of(*words: object) -> float:
    """Return the seconds of a command, and of writing what it wrote to disk."""
    begin = time.perf_counter()
    subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL)
    os.sync()
    return time.perf_counter() - begin


def main() -> None:
    """Compare, and print a line of JSON for each kind of selection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as directory:
        work = Path(directory).resolve()
        print(json.dumps(machine(work)))
        parent = generate(work / "all", arguments.documents, 600, seed=1)
        for name, options in CASES.items():
            ours, theirs = [], []
            for _ in range(arguments.repeats):
                for path in work.glob("some.*"):
                    path.unlink()
                os.sync()
                words = ["distcache", "select", parent, "--out", work / "some", *options]
                ours.append(seconds_of(*words, "--log-format", "none"))
                made = (work / "some.idx").stat().st_size
                theirs.append(seconds_of("cp", f"{parent}.idx", work / "copy"))
                (work / "copy").unlink()
            figures = {
                "what": name,
                "select, seconds": round(statistics.median(ours), 2),
                "cp, seconds": round(statistics.median(theirs), 2),
                "read, MB": round((work / "all.idx").stat().st_size / 1e6),
                "written, MB": round(made / 1e6),
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
