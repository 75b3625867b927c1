"""The scripts and manifests of the pages about schedulers are sound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distcache.launch.scripts import training_script

pytestmark = pytest.mark.slow

PAGES = Path(__file__).parents[2] / "docs" / "schedulers"
SCRIPTS = sorted(PAGES.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script(script: Path) -> None:
    """It is one of a shell, and still is when the lines of distcache are added to it."""
    text = training_script([str(script), "train.py"], Path("/shared/c.h5"))
    assert text.index("export DISTCACHE_CACHE") < text.index("distcache localize")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=30)


def test_the_manifests() -> None:
    """They are valid by the schema of Kubernetes."""
    done = subprocess.run(
        [
            Path(sys.executable).parent / "kubernetes-validate",
            "--strict",
            PAGES / "kubernetes.yaml",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
