"""Code of other projects, out of wheels whose other modules import what is not here."""

from __future__ import annotations

import ast
import importlib
import math
import sys
import types
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

JUDGES = Path(__file__).parents[2] / "build" / "judges"  # where `scripts/judges` unpacks them


def import_bare(module: str, wheel: str, **stubs: dict[str, Any]) -> Any:
    """Import a module of an unpacked wheel without running the packages that it is in.

    Parameters
    ----------
    module : str
        Name of the module.
    wheel : str
        Name of the directory of the wheel.
    **stubs : dict
        Contents of modules beside it, by their last names, that are not to be imported.
    """
    parts = module.split(".")
    for size in range(1, len(parts)):
        name = ".".join(parts[:size])
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(JUDGES / "frameworks" / wheel / name.replace(".", "/"))]
            sys.modules[name] = package
    for name, contents in stubs.items():
        stub = types.ModuleType(name.replace("__", "."))
        vars(stub).update(contents)
        sys.modules[stub.__name__] = stub
    return importlib.import_module(module)


def refuse(*_: Any, **__: Any) -> Any:
    """Take the place of a function that builds."""
    raise AssertionError("it builds")


PACKER = JUDGES / "olmo" / "packer.py"
NEEDED = {"SegmentTreeNode", "SegmentTree", "InstancePacker"}


def new_packer(row_length: int) -> Any:
    """Return a packer of rows of so many tokens, a power of two."""
    module = ast.parse(PACKER.read_text(encoding="utf-8"))
    module.body = [node for node in module.body if getattr(node, "name", None) in NEEDED]
    names: dict[str, Any] = {
        "Dict": dict, "List": list, "Optional": Optional, "Tuple": tuple, "math": math,
        "dataclass": dataclass, "defaultdict": defaultdict, "deque": deque, "np": np,
        "__name__": __name__,
    }  # fmt: skip
    exec(compile(module, str(PACKER), "exec"), names)
    return names["InstancePacker"](row_length)
