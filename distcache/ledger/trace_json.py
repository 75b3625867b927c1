"""Traces as JSON objects: samples with their parts, and their text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distcache.ledger.sample_text import texts_of
from distcache.ledger.trace import Trace
from distcache.ledger.trace_table import OF_STEP, columns_of, samples_of_table
from distcache.ledger.traced_run import DealtSamples


def samples_with_text(
    trace: Trace,
    found: Iterator[DealtSamples],
    *,
    sources: bool = True,
    text: int = 0,
    tokenizer: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield samples as JSON objects.

    Parameters
    ----------
    trace : Trace
        The split.
    found : iterator of DealtSamples
        Samples of it.
    sources : bool
        Whether the rows of files are found.
    text : int
        Number of the first samples whose parts have their text.
    tokenizer : str or None
        Tokenizer for the text; by default the one that a receipt names.
    """
    for some in found:
        texts = texts_of(trace, some.traced.first(text), tokenizer) if text else []
        text -= len(texts)
        columns = columns_of(some, trace, sources=sources)
        for number, sample in enumerate(samples_of_table(columns)):
            if number < len(texts):
                for part, words in zip(sample["parts"], texts[number], strict=True):
                    part["text"] = words
            yield sample


def by_step(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield steps with their samples."""
    for _, group in itertools.groupby(samples, key=lambda one: (one["step"], one.get("job"))):
        own = list(group)
        entry = {"step": 0, "skipped": False, "rolled_back": False}
        entry |= {name: own[0][name] for name in OF_STEP if name in own[0]}
        for sample in own:
            for name in entry:
                sample.pop(name, None)
        yield entry | {"samples": own}


def write_json(
    write: Callable[[str], Any],
    head: dict[str, Any],
    name: str,
    entries: Iterator[dict[str, Any]],
    notes: Callable[[], Sequence[str]],
) -> None:
    """Write a JSON object with a list of entries, one at a time, so that memory holds no more.

    Parameters
    ----------
    write : callable
        Writes a text.
    head : dict
        First fields of the object.
    name : str
        Name of the list.
    entries : iterator of dict
        Entries of the list.
    notes : callable
        Returns what is known of them in the end, for the last field.
    """
    write(json.dumps(head, indent=1)[:-2] + f',\n "{name}": [')
    number = -1
    for number, entry in enumerate(entries):
        write((",\n  " if number else "\n  ") + json.dumps(entry))
    write(("\n ]" if number >= 0 else "]") + f',\n "notes": {json.dumps(list(notes()))}\n}}\n')
