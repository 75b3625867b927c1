"""The distribution's name, its extras and the commands that install them, everywhere alike."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.errors import ConfigError
from distcache.extras import DISTRIBUTION, EXTRA_OF, how_to_install, needing

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").glob("*.md"))]
SOURCES = [*sorted((TOP / "distcache").rglob("*.py")), *sorted((TOP / "slurm").iterdir())]
WHEEL = re.compile(r"distcache_megatron-([\d.]+)-cp")
INSTALLED = re.compile(r"""pip install (?:-\S+ )*(["']?)([^\s"'`\[]+)(?:\[([\w,]+)\])?""")


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(TOP)))
def test_no_page_installs_another_project(path: Path) -> None:
    """The bare name belongs to somebody else on PyPI, and every extra that is named exists."""
    for _, name, extras in INSTALLED.findall(path.read_text()):
        assert name != "distcache", path
        assert set(extras.split(",")) - {""} <= EXTRAS.keys(), path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_no_page_has_a_placeholder(path: Path) -> None:
    """Such as one for a figure that is still to be measured."""
    assert re.findall(r"@[A-Z_]{3,}@", path.read_text()) == []


def test_the_table_of_extras_is_that_of_the_package() -> None:
    """Each library that is imported late belongs to the extra that lists it."""
    assert PROJECT["name"] == DISTRIBUTION
    listed = {
        re.split("[<>=;]", requirement)[0].strip().replace("-", "_"): extra
        for extra, requirements in EXTRAS.items()
        if extra != "all"
        for requirement in requirements
    }
    assert listed == EXTRA_OF
    every = EXTRAS["all"][0]
    assert every == f"{DISTRIBUTION}[{','.join(extra for extra in EXTRAS if extra != 'all')}]"
    page = (TOP / "docs" / "install.md").read_text()
    assert all(f"| `{extra}` |" in page for extra in EXTRAS)


def test_the_changelog_begins_with_this_version() -> None:
    """Its newest section, and the wheel that pages name."""
    changelog = (TOP / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)[0] == distcache.__version__
    named = {name for page in PAGES for name in WHEEL.findall(page.read_text())}
    assert named == {distcache.__version__}


def test_the_first_screen_is_short() -> None:
    """At most 450 words, and no extra is needed for what it tries."""
    screen = (TOP / "README.md").read_text().split("<!-- end of the first screen -->")[0]
    assert len(screen.split()) <= 450
    assert "[mpi]" not in screen
    assert "torch==" not in screen


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file:///home/a%20b/distcache", "dir_info": {"editable": True}},
            'pip install -e "/home/a b/distcache[mds]"',
        ),
        ({"url": "file:///src", "dir_info": {}}, 'pip install "/src[mds]"'),
        (
            {"url": "https://x.org/d", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            f'pip install "{DISTRIBUTION}[mds] @ git+https://x.org/d@ab12"',
        ),
        (
            {"url": "file:///d.whl", "archive_info": {}},
            f'pip install "{DISTRIBUTION}[mds] @ file:///d.whl"',
        ),
        (None, f'pip install "{DISTRIBUTION}[mds]"'),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came_from(
    origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout, git, a wheel, or an index."""

    class Found:
        def read_text(self, _name: str) -> str | None:
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(metadata, "distribution", lambda _name: Found())
    assert how_to_install("mds") == command


def test_a_missing_library_is_named_with_its_command() -> None:
    """Only those of extras are: another failed import is a fault of ours."""
    said = r"^torch is not installed, which dataset\(\) needs: pip"
    with pytest.raises(ConfigError, match=said), needing("dataset()"):
        raise ModuleNotFoundError(name="torch.utils")
    with pytest.raises(ModuleNotFoundError), needing():
        raise ModuleNotFoundError(name="distcache.nothing")
