"""Run the benchmarks of the documentation's tables: python -m benchmarks [NAME...] [-- OPTION...]

Without names: those that docs/performance.md names, in its order. Each is a process of its own,
with what it needs on the path; options after ``--`` are given to each.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
JUDGES = {"first_batch": "0.19.2", "packing": "bridge-0.6.2", "shards": "streaming"}


def names() -> list[str]:
    """Return the benchmarks of the page, in its order."""
    return list(dict.fromkeys(re.findall(r"benchmarks/(\w+)\.py", PAGE.read_text())))


def path_for(name: str) -> str:
    """Return the PYTHONPATH that a benchmark needs."""
    if name not in JUDGES:
        return ""
    words = [HERE.parent / "scripts" / "judges", JUDGES[name]]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Run them; one that fails hides no other."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    chosen, options = words[:cut] or names(), words[cut + 1 :]
    if unknown := [name for name in chosen if not (HERE / f"{name}.py").exists()]:
        sys.exit(f"there is no benchmark {', '.join(unknown)}; {', '.join(names())}")
    failed = []
    for name in chosen:
        print(f"\n== {name}", flush=True)
        environment = os.environ | {"PYTHONPATH": path_for(name)}
        program = [sys.executable, HERE / f"{name}.py", *options]
        if subprocess.run(program, env=environment, check=False).returncode != 0:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all have run")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
