"""What Megatron reads from a store: links to the tokens, and its own files of a cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from distcache.cache import open_cache
from distcache.corpus import bin_path, idx_path
from distcache.megatron.export import Exported, export, named_files
from distcache.megatron.names import AUTOMODEL, Naming
from distcache.node.manifest import CACHE, Manifest
from distcache.node.records import LocalCorpus
from distcache.node.store import Store
from distcache.storage.files import make_link, sync_directory, temporary_name
from distcache.storage.space import allocated
from distcache.storage.url import is_url

HEADER: int = 128  # bytes of a .npy file before its array


def link_tokens(store: Store, manifest: Manifest) -> None:
    """Give every corpus of a cache a link to its shared `.bin`, if that is where it has one."""
    for corpus in manifest.corpora:
        if not corpus.is_linked:
            continue
        link, target = Path(bin_path(store.prefix(corpus.stem))), bin_path(corpus.shared)
        with contextlib.suppress(OSError):
            if os.readlink(link) == target:
                continue
        temporary = temporary_name(link)
        make_link(temporary, target, "give --bin none, or --bin copy")
        os.replace(temporary, link)
    sync_directory(store.corpora)


def view_of(store: Store, name: str, naming: Naming) -> Path:
    """Return the directory of Megatron's files of a cache, or of NeMo Automodel's below it."""
    own = store.view(name)
    return own / AUTOMODEL if naming.automodel else own


def missing_view_bytes(store: Store, manifest: Manifest, naming: Naming) -> int:
    """Return the bytes that Megatron's files take beyond those that exist, each array once.

    A node's disk has hard links for its other names; where it has none they take more.

    Raises
    ------
    ConfigError
        If the tokenizer is unknown.
    """
    directory = view_of(store, manifest.name, naming)
    missing: dict[tuple[int, int], int] = {}
    for file in named_files(manifest.contents, _renamer(store, manifest), naming):
        for view in file.arrays.values():
            there = allocated(directory / f"{file.stem}-{view.name}.npy")
            wanted = max(view.nbytes + HEADER - there, 0)
            array = (view.offset, view.nbytes)
            missing[array] = min(wanted, missing.get(array, wanted))
    return sum(missing.values())


def make_view(store: Store, manifest: Manifest, naming: Naming) -> Exported:
    """Write Megatron's files of the local cache; valid ones are left as they are."""
    directory = view_of(store, manifest.name, naming)
    for place in dict.fromkeys((store.view(manifest.name), directory)):
        if place.is_symlink():
            place.unlink()  # a link could lead out of the store
        place.mkdir(mode=0o700, exist_ok=True)
    _lay_out_objects(store, manifest.corpora)
    cache = open_cache(manifest.files[CACHE].final)
    rename = _renamer(store, manifest)
    return export(cache, directory, rename, naming, objects=store.objects)


def _lay_out_objects(store: Store, corpora: Sequence[LocalCorpus]) -> None:
    """Link the `.idx` of corpora in buckets to where Megatron looks for what it has downloaded."""
    for corpus in corpora:
        if not _is_remote(corpus):
            continue
        path = store.object_index(corpus.shared)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        source, temporary = idx_path(store.prefix(corpus.stem)), temporary_name(path)
        os.link(source, temporary, follow_symlinks=False)
        os.replace(temporary, path)
        temporary.unlink(missing_ok=True)  # where both were one file, a rename does nothing


def _is_remote(corpus: LocalCorpus) -> bool:
    """Return whether Megatron has to read the tokens of a corpus from a bucket."""
    return is_url(corpus.shared) and not corpus.bin_size


def renamer(
    store: Store, prefixes: Sequence[str], corpora: Sequence[LocalCorpus]
) -> Callable[[str], str]:
    """Return the function from a prefix in a cache to the one that Megatron is given."""
    pairs = zip(prefixes, corpora, strict=True)
    return {
        prefix: corpus.shared if _is_remote(corpus) else store.prefix(corpus.stem)
        for prefix, corpus in pairs
    }.__getitem__


def _renamer(store: Store, manifest: Manifest) -> Callable[[str], str]:
    return renamer(store, manifest.contents.prefixes, manifest.corpora)
