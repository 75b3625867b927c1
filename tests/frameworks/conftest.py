"""The frameworks whose own code judges here; `scripts/judges` puts them into build/."""

import importlib.util
from pathlib import Path

JUDGES = Path(__file__).parents[2] / "build" / "judges" / "frameworks"

collect_ignore = []
if not (JUDGES / "installed").exists():
    collect_ignore += ["test_automodel.py"]
if importlib.util.find_spec("grain") is None:
    collect_ignore += ["test_grain.py"]
