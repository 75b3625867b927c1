"""Blends and samples in the forms in which people write them, as a configuration has them.

Weights and prefixes may alternate, as Megatron takes them, or in pairs; a folder or a pattern
is each corpus in it, which share its weight by their numbers of tokens; variables and ``~`` are
expanded; samples may be given as tokens.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from distcache.corpus import bin_path, idx_path
from distcache.corpus.idx import open_idx
from distcache.errors import ConfigError, NotReady
from distcache.plan.config import Epochs, Weight
from distcache.storage.units import parse_tokens
from distcache.storage.url import is_url

TOKENS: Final = re.compile(r"(.*\S)\s*tokens?", re.IGNORECASE)
EPOCHS: Final = r"^([0-9]{1,6}(\.[0-9]*)?) *[eE]pochs?$"
NUMBER: Final = re.compile(r"[0-9._]+(e[+]?[0-9]+|[kmbt])", re.IGNORECASE)
VARIABLE: Final = re.compile(r"\$\w+|\$\{[^}]*\}")
PAIR: Final = 2

# What is written for a number: texts, too, since YAML leaves 1e6 one, and Megatron weights.
WeightText = Annotated[str, Meta(pattern=r"^[0-9.]+([eE][+-]?[0-9]+)?$")]
CountText = Annotated[str, Meta(pattern=r"^[0-9._]+ *([eE][+]?[0-9]+|[kmbtKMBT])?( *[tT]okens?)?$")]
EpochText = Annotated[str, Meta(pattern=EPOCHS)]
WrittenCount = int | float | CountText | None


class WrittenEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A corpus of a blend, a folder, or a pattern."""

    path: str
    weight: float | WeightText | None = None
    epochs: Epochs | None = None
    max_epochs: Epochs | None = None
    samples: int | None = None


# Plain texts: msgspec 0.22 crashes at a union of a text with bounds and a tuple.
WrittenMember = WrittenEntry | str | float | tuple[float | WeightText, str]
WrittenBlend = str | Annotated[tuple[WrittenMember, ...], Meta(min_length=1)] | None


class WrittenSplits(msgspec.Struct, forbid_unknown_fields=True):
    """A separate blend for each split."""

    train: WrittenBlend = None
    valid: WrittenBlend = None
    test: WrittenBlend = None


class WrittenSamples(msgspec.Struct, forbid_unknown_fields=True):
    """Samples per split, or tokens as in ``300B tokens``, or ``3 epochs``; null is one pass."""

    train: WrittenCount | EpochText = 0
    valid: WrittenCount = 0
    test: WrittenCount = 0


class WrittenPhase(msgspec.Struct, forbid_unknown_fields=True):
    """A part of training with its own weights, and how long it is: one of three ways."""

    weights: (
        Annotated[tuple[float, ...], Meta(min_length=1)]
        | Annotated[dict[str, Weight], Meta(min_length=1)]
    )
    samples: WrittenCount = None
    tokens: WrittenCount = None
    steps: WrittenCount = None
    batch_size: WrittenCount = None


class WrittenForms(msgspec.Struct):
    """Fields that `as_configured` reads in more forms than a configuration has, for a schema."""

    blend: WrittenBlend = None
    blend_per_split: WrittenSplits | None = None
    samples: WrittenSamples | None = None
    phases: Annotated[tuple[WrittenPhase, ...], Meta(min_length=1)] | None = None


def as_configured(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return decoded fields of a configuration with blends and samples in their plain form.

    Whatever has another form is left unchanged, for the decoder to refuse.

    Raises
    ------
    ConfigError
        If a variable is not set, or a number of tokens cannot be read, or is less than a sample.
    NotReady
        If a folder or a pattern has no corpus.
    """
    found = dict(fields)
    if "blend" in found:
        found["blend"] = _blend(found["blend"])
    if isinstance(per_split := found.get("blend_per_split"), Mapping):
        found["blend_per_split"] = {split: _blend(blend) for split, blend in per_split.items()}
    if isinstance(samples := found.get("samples"), Mapping):
        length = found.get("sequence_length")
        found["samples"] = {split: _samples(count, length) for split, count in samples.items()}
    if isinstance(phases := found.get("phases"), list | tuple):
        per_split = found.get("blend_per_split")
        blend = per_split.get("train") if isinstance(per_split, Mapping) else found.get("blend")
        length = found.get("sequence_length")
        found["phases"] = [_phase(phase, length, blend) for phase in phases]
    return found


def _phase(phase: Any, length: Any, blend: Any) -> Any:
    """Return a phase whose numbers may have been texts such as ``12e6``, and weights by name."""
    if not isinstance(phase, Mapping):
        return phase
    found = {
        name: value if name == "weights" else _samples(value, length if name == "samples" else None)
        for name, value in phase.items()
    }
    if isinstance(weights := found.get("weights"), Mapping) and isinstance(blend, list | tuple):
        entries = [entry.get("path") if isinstance(entry, Mapping) else entry for entry in blend]
        paths = list(map(str, entries))
        by_path: dict[str, Any] = {}
        for name, weight in weights.items():
            path = _named(str(name), paths)
            if path in by_path:
                raise ConfigError(f"$.phases: {path} has two weights, one as {name}")
            by_path[path] = weight
        found["weights"] = [by_path.get(path, 0.0) for path in paths]
    return found


def _named(name: str, paths: Sequence[str]) -> str:
    """Return the path of a corpus that a phase names: by its path, or by the end of it.

    Raises
    ------
    ConfigError
        If no corpus has the name, or several have.
    """
    meant = [path for path in dict.fromkeys(paths) if path == name or path.endswith(f"/{name}")]
    if name in meant:
        return name
    if len(meant) != 1:
        known = ", ".join(meant or dict.fromkeys(paths))
        many = f"several corpora are named so, give the path: {known}"
        none = f"no corpus of training is named so; there are {known}"
        raise ConfigError(f"$.phases: {name}: {many if meant else none}")
    return meant[0]


def _samples(count: Any, length: Any) -> Any:
    """Return samples; of a text such as ``300B tokens``, the whole ones that have so many.

    YAML takes 1e6 for a text, and 1.0e+6 for a number that is not whole.

    Raises
    ------
    ConfigError
        If it is no number of tokens, or less than a sample.
    """
    if isinstance(count, float) and count.is_integer():
        return int(count)
    if not isinstance(count, str):
        return count
    if (epochs := re.match(EPOCHS, count)) is not None:
        return f"{epochs[1]} epochs"
    written = TOKENS.fullmatch(count.strip())
    if written is None:
        return parse_tokens(count) if NUMBER.fullmatch(count.strip()) else count
    if not isinstance(length, int) or length < 1:
        return count  # the length is refused, too
    if (samples := parse_tokens(written[1]) // length) == 0:
        raise ConfigError(f"samples: {count} are less than one sample of {length} tokens")
    return samples


def require_no_names(words: Sequence[str]) -> None:
    """Refuse the lists of some forks, in which a name follows each weight and prefix.

    Raises
    ------
    ConfigError
        If words are such a list.
    """
    columns = [[_number(word) is not None for word in words[place::3]] for place in range(3)]
    if words and len(words) % 3 == 0 and all(columns[0]) and not any(columns[1] + columns[2]):
        raise ConfigError(
            f"{' '.join(words[:3])}: has a weight, a prefix and a name; leave the names out: "
            "awk '{print $1, $2}' LIST"
        )


def _blend(blend: Any) -> Any:
    if isinstance(blend, str):
        blend = blend.split()
        require_no_names(blend)
    if not isinstance(blend, list | tuple):
        return blend
    return [member for entry in _in_pairs(blend) for member in _members(entry)]


def _in_pairs(blend: Sequence[Any]) -> list[Any]:
    """Return a blend whose weights and prefixes, in turn or in pairs, are entries."""
    numbers = [_number(word) for word in blend[::2]]
    texts = all(isinstance(word, str) for word in blend[1::2])
    if len(blend) % 2 == 0 and texts and numbers and None not in numbers:
        return [
            {"path": path, "weight": weight}
            for weight, path in zip(numbers, blend[1::2], strict=True)
        ]
    found = []
    for entry in blend:
        if isinstance(entry, Mapping) and isinstance(entry.get("weight"), str):
            weight = _number(entry["weight"])
            found.append(entry if weight is None else {**entry, "weight": weight})
            continue
        pair = isinstance(entry, list | tuple) and len(entry) == PAIR
        if pair and (weight := _number(entry[0])) is not None:
            found.append({"path": entry[1], "weight": weight})
        else:
            found.append(entry)
    return found


def _number(word: Any) -> float | None:
    """Return the number that a word is, or None."""
    if isinstance(word, bool) or not isinstance(word, int | float | str):
        return None
    try:
        return float(word)
    except ValueError:
        return None


def _members(entry: Any) -> Iterator[Any]:
    """Yield what an entry means: itself, or each corpus of its folder or pattern."""
    bare = isinstance(entry, str)
    path = entry if bare else entry.get("path") if isinstance(entry, Mapping) else None
    if not isinstance(path, str) or is_url(path):
        yield entry
        return
    path = _expanded(path)
    weight = None if bare else entry.get("weight")
    found = _corpora(path)
    if found is None:
        yield path if bare else {**entry, "path": path}
    elif weight is None or _number(weight) is None:
        yield from ({"path": prefix} if bare else {**entry, "path": prefix} for prefix in found)
    else:
        tokens = list(map(_tokens_of, found))
        whole = sum(tokens) or 1
        for prefix, count in zip(found, tokens, strict=True):
            yield {**entry, "path": prefix, "weight": float(weight) * count / whole}


def _tokens_of(prefix: str) -> int:
    """Return the tokens of a corpus: by the size of its `.bin`, if that is its own."""
    idx = open_idx(prefix)
    path = Path(bin_path(prefix))
    if path.is_file() and not path.is_symlink():
        return path.stat().st_size // idx.item_size
    return int(idx.lengths.sum(dtype=np.int64))


def _expanded(path: str) -> str:
    """Return a path with its variables and its ``~``, unless a corpus has that very name.

    Raises
    ------
    ConfigError
        If a variable is not set.
    """
    if os.path.lexists(idx_path(path)):
        return path
    expanded = os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111  paths are text
    if (left := VARIABLE.search(expanded)) is not None:
        raise ConfigError(f"{path}: {left[0]} is not set, so that nothing expands it")
    if expanded != path and _corpora(expanded) is None and not Path(idx_path(expanded)).exists():
        raise NotReady(f"{path}: expands to {expanded}, and there is no {idx_path(expanded)}")
    return expanded


def _corpora(path: str) -> list[str] | None:
    """Return the corpora of a folder or a pattern, in the order of their names; None for a prefix.

    An index without its tokens is one of them, and is found to be unsound.

    Raises
    ------
    NotReady
        If there is none, or if tokens have no index, as in a copy that has not ended.
    """
    if os.path.lexists(idx_path(path)):
        return None
    if os.path.isdir(path):
        pattern = os.path.join(glob.escape(path), "*")
    elif glob.has_magic(path):
        pattern = path.removesuffix(".idx").removesuffix(".bin")
    else:
        return None
    found = sorted(name.removesuffix(".idx") for name in glob.glob(idx_path(pattern)))
    if not found:
        raise NotReady(f"{path}: there is no corpus in it: no pair of .idx and .bin")
    for name in sorted(glob.glob(bin_path(pattern))):
        if name.removesuffix(".bin") not in found and Path(name).is_file():
            raise NotReady(
                f"{name}: has no .idx beside it; if its copy has not ended, wait for that; if it "
                "is no corpus, name the corpora by a pattern such as FOLDER/web-*"
            )
    return found
