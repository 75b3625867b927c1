"""Megatron-Bridge: its configuration and its loaders.

What it also imports and is not installed, most of it for GPUs, are empty modules here.
"""

from __future__ import annotations

import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from tests.judges import megatron as _before  # noqa: F401  it asks for what is absent below

__all__ = ["config", "loaders", "packing", "utils"]

ABSENT = ("datasets", "mamba_ssm", "modelopt", "nvidia_resiliency_ext", "PIL", "timm", "wandb")
ABSENT += ("megatron.bridge.models", "megatron.energon", "torch.utils.tensorboard")


class _Absent(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{absent}.") for absent in ABSENT):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MagicMock(__name__=spec.name, __path__=[], __spec__=spec)

    def exec_module(self, module: ModuleType) -> None:
        pass


_absent = _Absent()
sys.meta_path.insert(0, _absent)
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.bridge.data import loaders, utils
        from megatron.bridge.training import config

        try:
            from megatron.bridge.data.packing import algorithms as packing
        except ImportError:  # before 0.6
            from megatron.bridge.data.datasets import packing_utils as packing
finally:
    sys.meta_path.remove(_absent)
