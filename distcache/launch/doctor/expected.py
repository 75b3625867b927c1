"""The files that training looks for, compared with those of a directory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from distcache.launch.doctor.finding import Finding
from distcache.storage.files import read_file

MOST_FIELDS: Final = 3  # that differ, in a message
MAX_DESCRIPTION_BYTES: Final = 1 << 28  # bytes of a description
UNSAID: Final = "(nothing)"


class ExpectedFile(msgspec.Struct, frozen=True):
    """A file that training looks for."""

    name: str  # name of the file in the directory
    there: bool  # whether it exists


class Expected(msgspec.Struct, frozen=True):
    """The files of one section or blend, and what their names are the digest of."""

    stem: str
    description: str
    files: tuple[ExpectedFile, ...]


def expected_of(stem: str, description: str, names: Sequence[str], directory: Path) -> Expected:
    """Return the files of a section or blend, and whether a directory has them."""
    files = tuple(ExpectedFile(name, _is_whole(directory / name)) for name in names)
    return Expected(stem, description, files)


def _is_whole(path: Path) -> bool:
    """Return whether a file is there, and as long as its header says."""
    if path.suffix != ".npy" or not path.is_file():
        return path.is_file()
    try:
        np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return True


def judge(expected: Sequence[Expected], directory: Path) -> Iterator[Finding]:
    """Yield one finding if all is there, else one for each reason why something is not."""
    files = sum(len(entry.files) for entry in expected)
    reasons: dict[str, list[Expected]] = {}
    known: dict[str, list[dict[str, Any]]] = {}
    for entry in expected:
        there = sum(file.there for file in entry.files)
        if there == len(entry.files):
            continue
        reason = f"{len(entry.files) - there} of its files are missing or cut short; export again"
        if not there:
            kind = _kind_of(entry.stem)
            known.setdefault(kind, list(_descriptions(directory, kind)))
            reason = _difference(entry, known[kind])
        reasons.setdefault(reason, []).append(entry)
    if not reasons:
        text = f"{directory}: training finds all {files} files, and builds nothing"
        yield Finding("ok", "files", text)
    for reason, entries in reasons.items():
        more = f" (and {len(entries) - 1} more like it)" if len(entries) > 1 else ""
        text = f"{entries[0].stem}{more}: training would build it: {reason}"
        yield Finding("problem", "files", text)


def _kind_of(stem: str) -> str:
    """Return class and split of the start of a file's name."""
    return stem.partition("-")[2]


def _descriptions(directory: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the descriptions that a directory has of a class and a split, as flat documents."""
    for path in sorted(directory.glob("*-description.txt")):
        if _kind_of(path.name.removesuffix("-description.txt")) != kind:
            continue
        with contextlib.suppress(OSError, ValueError, RecursionError):
            yield _flat(json.loads(read_file(path, MAX_DESCRIPTION_BYTES, follow=False)))


def _difference(entry: Expected, known: Sequence[dict[str, Any]]) -> str:
    """Return in which fields the most similar description differs."""
    wanted = _flat(json.loads(entry.description))
    best: dict[str, tuple[Any, Any]] | None = None
    for found in known:
        differing = {
            name: (wanted.get(name, UNSAID), found.get(name, UNSAID))
            for name in sorted(wanted.keys() | found.keys())
            if wanted.get(name, UNSAID) != found.get(name, UNSAID)
        }
        if best is None or len(differing) < len(best):
            best = differing
    if best is None:
        return f"there is no description of a {_kind_of(entry.stem)}"
    if not best:
        return "its files are missing or cut short, and its description fits; export again"
    shown = [
        f"{name} is {theirs!r} in training, {ours!r} here"
        for name, (theirs, ours) in list(best.items())[:MOST_FIELDS]
    ]
    more = len(best) - len(shown)
    return "; ".join([*shown, *([f"and {more} more fields"] if more else [])])


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of a document by their paths."""
    if isinstance(value, dict):
        parts = [(f"{name}.{key}" if name else str(key), part) for key, part in value.items()]
    elif isinstance(value, list):
        parts = [(f"{name}[{number}]", part) for number, part in enumerate(value)]
    else:
        return {name: value}
    return {path: leaf for key, part in parts for path, leaf in _flat(part, key).items()}
