"""The Python API under the names of version 0.2."""

from __future__ import annotations

import importlib
import sys

import pytest

from distcache.moved import MOVED


@pytest.mark.parametrize("old", [name for name in MOVED if name != "distcache.mds.row"])
def test_a_module_is_found_under_its_old_name(old: str) -> None:
    """It is the same module, whose own name is the new one; a warning names it."""
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now"):
        found = importlib.import_module(old)
    assert found is importlib.import_module(MOVED[old])
    assert found.__name__ == MOVED[old]
    assert found.__spec__ is not None
    assert found.__spec__.name == MOVED[old]


def test_a_module_of_a_package_that_moved_is_found() -> None:
    """Rows are the only published class of the package."""
    for name in ("distcache.mds", "distcache.mds.row"):
        sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=r"distcache\.mds"):
        found = importlib.import_module("distcache.mds.row")
    assert found is importlib.import_module("distcache.corpus.mds.row")


def test_other_names_are_not_found() -> None:
    """What never was there is an error as before."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("distcache.nothing")
