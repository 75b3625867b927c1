"""The examples train from a cache, resume, and stay short."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import here

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {"plain_torch": "torch", "accelerate_loop": "accelerate", "maxtext_grain": "grain"}


@pytest.fixture
def cache(blend_config: dict[str, Any], shared: Path) -> str:
    """A cache of a blend."""
    return str(here.build(blend_config, shared, "c").path)


def run(name: str, cache: str, directory: Path) -> list[str]:
    """Run an example in a directory, and return its lines."""
    if importlib.util.find_spec(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]} is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", cache],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("step")]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_is_short(path: Path) -> None:
    """No example has more than forty lines."""
    assert len(path.read_text().splitlines()) <= 40


def test_plain_torch_resumes(cache: str, tmp_path: Path) -> None:
    """The second run continues where the first one ended."""
    counted = [
        re.search(r"samples (\d+)", line)
        for _ in range(2)
        for line in run("plain_torch", cache, tmp_path)
    ]
    assert [int(found[1]) for found in counted if found] == list(range(4, 44, 4))


def test_accelerate(cache: str, tmp_path: Path) -> None:
    """Accelerate's loop takes its steps."""
    assert len(run("accelerate_loop", cache, tmp_path)) == 5


def test_grain_resumes(cache: str, tmp_path: Path) -> None:
    """The second run continues with the sample after the last one of the first."""
    lines = [line for _ in range(2) for line in run("maxtext_grain", cache, tmp_path)]
    seen = [
        int(word) for line in lines for word in re.findall(r"\d+", line.split("[")[1].split("]")[0])
    ]
    assert seen == list(range(40))
