"""A pytest plugin that lets tests run with another build of the kernels.

    DISTCACHE_KERNELS=PATH pytest -p tests.kernels.other_build

The sanitized build needs its runtime before all else: LD_PRELOAD (see `scripts/sanitized`).
"""

from __future__ import annotations

import importlib.util
import os
import sys

NAME = "distcache._kernels"

_spec = importlib.util.spec_from_file_location(NAME, os.environ["DISTCACHE_KERNELS"])
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
sys.modules[NAME] = _module
