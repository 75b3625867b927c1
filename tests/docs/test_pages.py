"""What the documentation promises: commands and examples run, and scripts are sound."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from distcache.launch.scripts import read_script, training_script
from tests.support import here
from tests.support.processes import LIMIT, clean_environment

pytestmark = pytest.mark.slow

DOCS: Final = Path(__file__).parents[2] / "docs"
BLOCK: Final = re.compile(r"(?:Save as `([\w.]+)`[^`]*)?```(\w+)\n(.*?)```", re.DOTALL)


def words(text: str) -> str:
    """Return a text without what a table puts between its words."""
    return " ".join(text.split())


def test_the_quick_start(tmp_path: Path) -> None:
    """The quick start is what a new user gets, block by block."""
    page = (DOCS / "quickstart.md").read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**clean_environment(), "PATH": path, "COLUMNS": "200"}
    said, shown = "", 0
    for name, kind, text in BLOCK.findall(page):
        if name:
            (tmp_path / name).write_text(text)
        elif kind == "text":
            for line in text.splitlines():
                assert words(line) in words(said), said
                shown += 1
        elif "pip install" not in text:
            done = subprocess.run(
                ["sh", "-ec", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            said = done.stdout
    assert shown == 15
    assert len(list((tmp_path / "megatron-cache").iterdir())) > 30


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


SCRIPTS = sorted((DOCS / "schedulers").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script(script: Path) -> None:
    """It is one of a shell, and still is when the lines of distcache are added to it."""
    text = training_script(read_script(str(script)), ["train.py"], Path("/shared/c.h5"))
    assert text.index("export DISTCACHE_CACHE") < text.index("distcache localize")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=30)


def test_the_manifests() -> None:
    """They are valid by the schema of Kubernetes."""
    done = subprocess.run(
        [
            Path(sys.executable).parent / "kubernetes-validate",
            "--strict",
            DOCS / "schedulers" / "kubernetes.yaml",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
