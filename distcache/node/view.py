"""What Megatron sees of a store: corpora whose tokens are linked, and its own files of a cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distcache.cache import open_cache
from distcache.cache.export import Exported, export
from distcache.cache.megatron import MegatronFile, megatron_files
from distcache.corpus import bin_path
from distcache.files import passing_name, sync_directory
from distcache.node.record import LocalCorpus
from distcache.node.space import allocated
from distcache.node.store import Store
from distcache.node.wanted import CACHE, Wanted

__all__ = ["link_tokens", "make_view", "missing_view_bytes", "plan_view", "renamer"]

HEADER: int = 128  # bytes of a .npy file before its array


def link_tokens(store: Store, wanted: Wanted) -> None:
    """Give every corpus of a cache a link to its shared `.bin`."""
    for corpus in wanted.corpora:
        link, target = Path(bin_path(store.prefix(corpus.stem))), bin_path(corpus.shared)
        with contextlib.suppress(OSError):
            if os.readlink(link) == target:
                continue
        temporary = passing_name(link)
        os.symlink(target, temporary)
        os.replace(temporary, link)
    sync_directory(store.corpora)


def plan_view(
    store: Store, wanted: Wanted, tokenizer: dict[str, Any] | None
) -> Sequence[MegatronFile]:
    """Return Megatron's files of a cache whose corpora are those of a store.

    Raises
    ------
    ConfigError
        If nobody knows the tokenizer.
    """
    return list(megatron_files(wanted.contents, _renamer(store, wanted), tokenizer))


def missing_view_bytes(files: Sequence[MegatronFile], store: Store, wanted: Wanted) -> int:
    """Return the bytes that Megatron's files take beyond those that are there."""
    directory = store.view(wanted.name)
    return sum(
        max(view.nbytes + HEADER - allocated(directory / f"{file.stem}-{view.name}.npy"), 0)
        for file in files
        for view in file.arrays.values()
    )


def make_view(store: Store, wanted: Wanted, tokenizer: dict[str, Any] | None) -> Exported:
    """Write Megatron's files of the local cache; those that are right are left as they are."""
    directory = store.view(wanted.name)
    if directory.is_symlink():
        directory.unlink()  # what is behind it is not the store's
    directory.mkdir(mode=0o700, exist_ok=True)
    cache = open_cache(wanted.files[CACHE].final)
    return export(cache, store.view(wanted.name), _renamer(store, wanted), tokenizer)


def renamer(
    store: Store, prefixes: Sequence[str], corpora: Sequence[LocalCorpus]
) -> Callable[[str], str]:
    """Return the function from a prefix in a cache to the one in the store."""
    pairs = zip(prefixes, corpora, strict=True)
    return {prefix: store.prefix(corpus.stem) for prefix, corpus in pairs}.__getitem__


def _renamer(store: Store, wanted: Wanted) -> Callable[[str], str]:
    return renamer(store, wanted.contents.prefixes, wanted.corpora)
