"""Tests are marked by their folder, and what cannot run is skipped, or an error where it must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import MARKS, TESTS, is_installed, marks_of, missing
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
    assert [path for path in MARKS if not (TESTS / path).exists()] == []


def test_the_longest_path_decides() -> None:
    """A folder in a folder has marks of its own."""
    assert marks_of(TESTS / "jobs" / "test_x.py") == ("jobs",)
    assert marks_of(TESTS / "jobs" / "store" / "test_x.py") == ("jobs", "store")
    assert marks_of(TESTS / "plan" / "test_x.py") == ()


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
