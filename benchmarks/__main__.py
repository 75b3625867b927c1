"""Run benchmarks beside their peers: python -m benchmarks [NAME...]

Without names all run. Each prints its tables; --write puts them into benchmarks/README.md, between
their marks, with the commit, which must be clean.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.harness import TOP, Run, caption, commit, markdown, note, place_in, publish

NAMES = (
    "kernels",
    "building",
    "many_corpora",
    "loading",
    "first_batch",
    "localizing",
    "packing",
    "ledger",
    "dealing",
    "buckets",
    "shards",
    "ingesting",
    "scaling",
)


def path_of(judge: str) -> str:
    """Unpack a judge, and return the PYTHONPATH for it."""
    words = [TOP / "scripts" / "judges", judge]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def require_places(name: str) -> None:
    """Look for the places of all tables, before anything is measured."""
    for mark in importlib.import_module(f"benchmarks.{name}").MARKS:
        place_in(mark)


def run_one(name: str, at: str, options: argparse.Namespace) -> None:
    """Run a benchmark, and print or write its tables."""
    module = importlib.import_module(f"benchmarks.{name}")
    judge = getattr(module, "JUDGE", "")
    os.environ["PYTHONPATH"] = path_of(judge) if judge else ""
    with tempfile.TemporaryDirectory(dir=options.directory) as work:
        run = Run(Path(work), options.rounds, options.scale)
        for table in module.tables(run):
            about = caption(table, run, at)
            if options.json:
                print(json.dumps({"about": about, **table._asdict()}), flush=True)
            elif options.write:
                publish(table.mark, f"{about}\n\n{markdown(table)}")
            else:
                print(f"\n{table.mark}. {about}\n\n{markdown(table)}", flush=True)


def main() -> None:
    """Run those that are named, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes")
    parser.add_argument("--directory", help="where to work; by default the temporary one")
    parser.add_argument("--write", action="store_true", help="put the tables into README.md")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there is {', '.join(NAMES)}")
    if options.rounds < 1 or not 0 < options.scale <= 1000:
        parser.error("expected at least one round, and a scale above 0")
    if options.directory and not Path(options.directory).is_dir():
        parser.error(f"{options.directory}: no such directory")
    at = commit()
    if options.write and at.endswith("-dirty"):
        parser.error("the checkout has changes; commit them first, so that tables have a commit")
    for name in options.names or NAMES:
        note(f"== {name}")
        if options.write:
            require_places(name)
        run_one(name, at, options)


if __name__ == "__main__":
    main()
