"""The list of data sets that a mix is made of: what it says, and what is wrong with it."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from distcache.errors import ConfigError
from distcache.storage.threads import decodable
from distcache.storage.url import is_url

MAX_SAMPLES: Final = 1 << 40
NAME: Final = re.compile(r"[^\w.-]+")
Share = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
# Splits by the words for their data sets: streaming's `streams`, and the loaders of llm-foundry.
SPLITS: Final = {
    "train": "train",
    "streams": "train",
    "train_loader": "train",
    "valid": "valid",
    "eval_loader": "valid",
}
PLACES: Final = ("path", "local", "remote")
# What users take for the name of how much is taken.
HOW_MUCH: Final = frozenset(
    ("weight", "weights", "prop", "ratio", "share", "samples", "num_samples", "epochs")
)


@decodable
class _Entry(msgspec.Struct, frozen=True):
    """A data set of a list; other fields are ignored."""

    path: str | None = None
    local: str | None = None
    remote: str | None = None
    name: str | None = None
    split: str | None = None
    choose: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLES)] | None = None
    proportion: Share | None = None
    repeat: Share | None = None

    @property
    def directory(self) -> str | None:
        """Where it is: streaming's `local` may hold a part of `remote`, as its cache."""
        if self.path is None and self.remote is not None and os.path.isdir(self.remote):
            return self.remote
        return self.path or self.local or self.remote

    @property
    def url(self) -> str:
        """URL of its shards; empty if they are on a filesystem."""
        place = self.path or self.remote or ""
        return place if is_url(place) else ""


class MixStream(msgspec.Struct, frozen=True):
    """A data set of a mix."""

    name: str  # name of its corpus
    # directory and split of the data set
    directory: str
    split: str
    # amount, as ``Stream`` of mosaicml-streaming has it: samples of a pass, a share, or how often;
    # at most one of them
    choose: int | None
    proportion: float | None
    repeat: float | None
    url: str = ""  # URL of its shards, of which that directory may have all; empty without one


class Recipe(msgspec.Struct, frozen=True):
    """What is mixed."""

    # data sets of training and of validation
    train: tuple[MixStream, ...]
    valid: tuple[MixStream, ...]
    passed: tuple[str, ...] = ()  # fields of the list that are ignored


class _Findings(NamedTuple):
    """What is wrong with a list, and what is ignored."""

    problems: list[str]
    passed: list[str]


def recipe_from(document: Mapping[str, Any]) -> Recipe:
    """Read a list of data sets.

    Parameters
    ----------
    document : mapping
        ``train`` and ``valid`` with lists of data sets, or with mappings of them by name; or
        ``streams`` with those of training, as streaming has them; or ``train_loader`` and
        ``eval_loader`` with a ``dataset``, which has ``streams`` or is one, as llm-foundry has
        them. A data set has ``path`` (or ``local`` or ``remote``), and may have ``name``,
        ``split``, and ``choose``, ``proportion`` or ``repeat``; other fields are passed
        over, unless they are like one of these or say how much is taken.

    Raises
    ------
    ConfigError
        With everything that is wrong.
    """
    findings = _Findings([], [])
    problems = findings.problems
    of_foundry = "train_loader" in document  # a whole configuration of a training
    streams: dict[str, list[MixStream]] = {"train": [], "valid": []}
    for key, content in document.items():
        if key in SPLITS:
            for where, fields in _entries(f"$.{key}", content, findings):
                streams[SPLITS[key]] += _stream(where, fields, findings)
        elif not of_foundry:
            problems.append(f"$.{key}: unknown field, expected one of {', '.join(SPLITS)}")
    if not streams["train"] and not problems:
        problems.append("$.train: expected a list of data sets")
    names = Counter(stream.name for split in streams.values() for stream in split)
    problems += [f"{name}: is the name of several data sets" for name in names if names[name] > 1]
    relative = {stream.proportion is not None for stream in streams["train"]}
    if len(relative) > 1:
        problems.append("$.train: proportion for all data sets or for none")
    if problems:
        raise ConfigError(*problems)
    findings.passed.extend(
        f"proportion of {stream.name}, a validation set"
        for stream in streams["valid"]
        if stream.proportion
    )
    return Recipe(tuple(streams["train"]), tuple(streams["valid"]), tuple(findings.passed))


def _entries(where: str, content: Any, findings: _Findings) -> list[tuple[str, Any]]:
    """Return each data set with its place in the document."""
    problems = findings.problems
    if isinstance(content, Mapping):
        if content.get("dataset") is not None:  # of a loader of llm-foundry
            return _entries(f"{where}.dataset", content["dataset"], findings)
        if content.get("streams") is not None:
            return _entries_of_dataset(where, content, findings)
        if any(isinstance(content.get(name), str) for name in PLACES):
            return [(where, content)]
        wrong = [name for name, fields in content.items() if not isinstance(fields, Mapping)]
        problems += [f"{where}.{name}: expected fields of a data set" for name in wrong]
        return [
            (f"{where}.{name}", {"name": str(name), **fields})
            for name, fields in content.items()
            if name not in wrong
        ]
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [(f"{where}[{number}]", fields) for number, fields in enumerate(content)]
    problems.append(f"{where}: expected a list of data sets")
    return []


def _entries_of_dataset(
    where: str, dataset: Mapping[str, Any], findings: _Findings
) -> list[tuple[str, Any]]:
    """Return the data sets of a StreamingDataset, whose `split` applies to each without one."""
    much = [name for name in ("choose", "proportion", "repeat") if dataset.get(name) is not None]
    findings.problems.extend(f"{where}.{name}: is a field of each stream" for name in much)
    findings.passed.extend(
        f"{where}.{name}" for name in dataset if name not in ("streams", "split", *much)
    )
    split = dataset.get("split")
    return [
        (place, {**fields, "split": split})
        if split and isinstance(fields, Mapping) and not fields.get("split")
        else (place, fields)
        for place, fields in _entries(f"{where}.streams", dataset["streams"], findings)
    ]


def _stream(where: str, fields: Any, findings: _Findings) -> list[MixStream]:
    problems = findings.problems
    try:
        entry = msgspec.convert(fields, _Entry)
    except msgspec.ValidationError as error:
        problems.append(f"{where}: {error}")
        return []
    known = _Entry.__struct_fields__
    for name in fields:
        if name in known:
            continue
        if near := difflib.get_close_matches(str(name), known, n=1, cutoff=0.8):
            problems.append(f"{where}.{name}: unknown field; did you mean {near[0]}?")
        elif difflib.get_close_matches(str(name), HOW_MUCH, n=1, cutoff=0.8):
            problems.append(f"{where}.{name}: give choose, proportion or repeat")
        else:
            findings.passed.append(f"{where}.{name}")
    if entry.directory is None:
        problems.append(f"{where}: has no path")
        return []
    split = entry.split or ""
    given = [
        name for name in ("choose", "proportion", "repeat") if getattr(entry, name) is not None
    ]
    if len(given) > 1:
        problems.append(f"{where}: has {' and '.join(given)}; give one of them")
    if not (entry.directory + split).isprintable():
        problems.append(f"{where}: its path has characters that cannot be printed")
    parts = Path(entry.directory, split).parts
    name = NAME.sub("-", entry.name or "-".join(parts[-2:] if split else parts[-1:]))
    if name.strip(".") == "":
        problems.append(f"{where}: its path {entry.directory} names no corpus; give it a name")
    much = (entry.choose, entry.proportion, entry.repeat)
    return [MixStream(name, entry.directory, split, *much, entry.url)]
