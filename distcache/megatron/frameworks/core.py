"""Megatron-Core, whose order it is, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distcache.cache.contents import Contents
from distcache.megatron.arguments import Arguments, megatron_arguments
from distcache.megatron.frameworks.framework import ExportPlace, Framework, Rename, continued
from distcache.megatron.names import Naming, megatron_files


def _settings(cache: Contents, place: ExportPlace, rename: Rename, naming: Naming) -> Arguments:
    return megatron_arguments(cache, place.directory, place.stem, rename, place.objects)


def _refusals(cache: Contents, rename: Rename, here: Sequence[str]) -> Iterator[str]:
    return continued(cache)


MEGATRON_CORE = Framework(
    title="Megatron-Core", files=megatron_files, settings=_settings, refusals=_refusals
)
