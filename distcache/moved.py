"""Modules of the Python API under the names that they had until 0.2, which give a warning.

For one release: 0.4 will not have them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "distcache.configuration": "distcache.builder.configuration",
    **{
        f"distcache.ingest.{name}": f"distcache.edit.{name}"
        for name in (
            "index_mds",
            "mds_scan",
            "merge",
            "mix",
            "mix_recipe",
            "select",
            "selection",
            "unpack",
        )
    },
    "distcache.mds": "distcache.corpus.mds",
    "distcache.mds.row": "distcache.corpus.mds.row",
}


class _Alias(Loader):
    """Gives a module, unchanged, a second name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        message = f"{spec.name} is {self._name} now; the old name goes with version 0.4"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put that of the old name there


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MOVED:
            return None
        return importlib.util.spec_from_loader(fullname, _Alias(MOVED[fullname]))


def find_moved() -> None:
    """Let the import system find modules under their old names. Idempotent.

    It asks here first: a package under its old name has a path, in which it would find a module
    again.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
