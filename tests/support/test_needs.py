"""Tests are marked by their folder, and what cannot run is skipped, or an error where it must."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import MARKS, SINCE, TESTS, is_installed, marks_of, missing
from tests.support.processes import clean_environment

CASES = {
    "test_library.py": "import nothing_of_this_name\n\n\ndef test_it() -> None:\n    pass\n",
    "test_helper.py": "import pytest\n\n\n@pytest.mark.slow\ndef helper() -> None:\n    pass\n",
    "test_late.py": "import pytest\n\n\n@pytest.mark.since('99.0')\ndef test_it():\n    pass\n",
    "test_own.py": "import distcache.nothing_of_this_name\n",
}


def run(name: str, tmp_path: Path, **environment: str) -> tuple[int, str]:
    """Run pytest over a file in a folder with the hooks of these tests."""
    (tmp_path / "test_it.py").write_text(CASES[name])
    words = ["-q", "-p", "tests.conftest", "--rootdir", str(TESTS.parent), "-c", "pyproject.toml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider", str(tmp_path)],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=clean_environment({"DISTCACHE_REQUIRE": "", **environment}),
    )
    return done.returncode, done.stdout


def test_every_marked_path_is_there() -> None:
    """A folder or file that was renamed does not lose its mark in silence."""
    assert [path for path in (*MARKS, *SINCE) if not (TESTS / path).exists()] == []


def test_every_fault_of_the_mutants_fits_the_code() -> None:
    """What `scripts/mutants` replaces stands once in its file, and its tests exist."""
    found = runpy.run_path(str(TESTS.parent / "scripts" / "mutants"), run_name="mutants")
    for mutant in found["MUTANTS"]:
        text = (TESTS.parent / "distcache" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.promise
        assert all((TESTS / name).exists() for name in mutant.tests.split()), mutant.promise


def test_the_longest_path_decides() -> None:
    """A folder in a folder has marks of its own."""
    assert marks_of(TESTS / "jobs" / "test_x.py") == ("jobs",)
    assert marks_of(TESTS / "jobs" / "store" / "test_x.py") == ("jobs", "store")
    assert marks_of(TESTS / "plan" / "test_x.py") == ("local",)
    assert marks_of(TESTS / "cache" / "test_x.py") == ("wild", "local")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are not in PATH."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "slurmctld" in missing("cluster")
    assert missing("slow") == ""
    assert not is_installed("nothing.of.this.name")


@pytest.mark.slow
def test_a_missing_library_skips_a_file(tmp_path: Path) -> None:
    """With its name; where all has to run, it is an error."""
    code, said = run("test_library.py", tmp_path)
    assert code == 0, said
    assert "nothing_of_this_name is not installed" in said
    code, said = run("test_library.py", tmp_path, DISTCACHE_REQUIRE="all")
    assert code == 1, said
    assert "DISTCACHE_REQUIRE=all" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected", "message"),
    [
        ("test_helper.py", 2, "helper has a mark, and is no test"),
        ("test_own.py", 2, "nothing_of_this_name"),
        ("test_late.py", 5, "1 deselected"),
    ],
)
def test_mistakes_in_files(name: str, expected: int, message: str, tmp_path: Path) -> None:
    """Marks without effect and broken imports of our own are errors; later releases are not due."""
    code, said = run(name, tmp_path)
    assert code == expected, said
    assert message in said


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "megatron", "mpi4py", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.slow
def test_the_fast_ones_need_no_torch(tmp_path: Path) -> None:
    """All files are collected, or skipped with what they lack, where only the group `test` is."""
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    words = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "local and not (slow or more)"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "tests"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=clean_environment({"DISTCACHE_REQUIRE": "", "PYTHONPATH": str(tmp_path)}),
    )
    assert done.returncode == 0, done.stdout[-3000:]
