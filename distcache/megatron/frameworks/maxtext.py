"""MaxText's ``mmap_npy``: Megatron's arrays under names of its own.

By ``input_pipeline/{_mmap_index_utils,_mmap_datasource,_megatron_blending}.py`` of MaxText 0.2.5.
The name of a section is the MD5 of the number of epochs and whether the last one is apart, instead
of the number of samples. It indexes documents where Megatron indexes sequences, and counts the
tokens of an epoch by bytes of the `.bin`, so that a corpus must be whole and each of its documents
one sequence. A blend has as many samples as training asks for, Megatron's a few more: its files are
the beginning of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from distcache.cache.contents import Contents
from distcache.corpus.idx import open_idx
from distcache.megatron.arguments import Arguments, blend_words
from distcache.megatron.frameworks.framework import (
    AS_YAML,
    ExportPlace,
    Framework,
    Rename,
    blends_of_one,
    samples_asked,
    unsupported_options,
    yaml_lines,
)
from distcache.megatron.names import (
    NamedArrays,
    Naming,
    description_of,
)

TITLE: Final = "MaxText 0.2.5"
# MaxText trains on the first of its splits and evaluates on the second.
SPLITS: Final = {"train": 0, "valid": 1}
EVALUATION: Final = {"train": "train", "valid": "eval"}
SEPARATORS: Final = ";|:,"
PIECE: Final = 1 << 20  # documents whose bounds are compared at a time


def _files(cache: Contents, rename: Rename, naming: Naming) -> Iterator[NamedArrays]:
    sections, seen = cache.table("sections"), set[str]()
    for member in cache.table("members"):
        split = member["split"].decode("ascii")
        if split not in SPLITS:
            continue
        section = sections[member["section"]]
        description, digest = description_of(
            {
                "class": "MegatronNpyDataSource",
                "input_paths": [rename(cache.prefixes[int(member["source"])])],
                "num_epochs": int(section["epochs"]),
                "separate_final_epoch": bool(section["separate_samples"] >= 0),
                "seed": cache.identity["seed"],
                "sequence_length": cache.identity["sequence_length"],
                "split": cache.naming["split"],
                "split_index": SPLITS[split] if cache.naming["split"] is not None else 0,
                "add_extra_token": 1,
            }
        )
        if digest not in seen:
            seen.add(digest)
            arrays = cache.arrays("sections", int(member["section"]))
            yield NamedArrays(digest, description, arrays)
    for row, blend in enumerate(cache.table("blends")):
        split = blend["split"].decode("ascii")
        if split in SPLITS:
            size = cache.identity["samples"][split]
            description, digest = description_of(blend_fields(EVALUATION[split], size))
            # It takes the only blend of a split in the directory, whatever its digest.
            stem = f"{digest}-BlendedDataset-{EVALUATION[split]}"
            yield NamedArrays(stem, description, cache.arrays("blends", row), size)


def blend_fields(split: str, size: int | None) -> dict[str, Any]:
    """Return what describes a blend, of which MaxText itself has no description."""
    return {"class": "BlendedDataset", "split": split, "size": size}


def _settings(cache: Contents, place: ExportPlace, rename: Rename, naming: Naming) -> Arguments:
    document: dict[str, Any] = {"dataset_type": "grain", "grain_file_type": "mmap_npy"}
    for split, field in (("train", "grain_train_files"), ("valid", "grain_eval_files")):
        if split in cache.splits:
            document[field] = _specifications(cache, split, place, rename)
    document |= {
        "max_target_length": cache.identity["sequence_length"],
        "data_shuffle_seed": cache.identity["seed"],
        "mmap_npy_split": cache.naming["split"] or "",
    }
    if len(cache.table("blends")):
        document["blend_index_dir"] = str(place.directory)
    asked = samples_asked(cache)
    warnings = [
        f"the {name} must ask for {count:,} samples in all"
        for split, name in (
            ("train", "steps and the global batch size"),
            ("valid", "evaluations, eval_steps of each and its batch size"),
        )
        if split in cache.splits and (count := asked[split]) is not None
    ]
    warnings.append("mmap_eod_id must be the token that ends the documents")
    return Arguments(yaml_lines(document), {}, tuple(warnings))


def _specifications(cache: Contents, split: str, place: ExportPlace, rename: Rename) -> str:
    """Return the corpora of a split as MaxText spells them."""
    words = blend_words(cache, split, rename) or []
    if len(words) == 1:
        return f"{place.directory}|{words[0]}"
    pairs = zip(words[1::2], words[::2], strict=True)
    return ";".join(f"{place.directory}|{prefix},{weight}" for prefix, weight in pairs)


def _refusals(cache: Contents, rename: Rename, here: Sequence[str]) -> Iterator[str]:
    yield from unsupported_options(cache, TITLE)
    if cache.identity.get("order", "megatron") != "megatron":
        yield f"has the order {cache.identity['order']}, which {TITLE} does not know"
    blends = {split: blend for split, blend in cache.naming["blends"].items() if split in SPLITS}
    for split, blend in blends.items():
        if len(blend) > 1 and any(weight is None for _, weight in blend):
            yield f"has a blend without weights ({split}), and {TITLE} needs them"
        elif len(blend) > 1 and cache.identity["samples"][split] is None:
            yield f"has a blend of one epoch ({split}), and {TITLE} blends so many samples"
    for split in filter(SPLITS.__contains__, blends_of_one(cache)):
        yield f"has a blend of one corpus ({split}), whose weight {TITLE} leaves out"
    yield from _other_ranges(cache)
    for number, prefix in enumerate(cache.prefixes):
        given = rename(prefix)
        if set(given) & set(SEPARATORS) or given != given.strip():
            yield (
                f"has {given!r}, whose name has one of {SEPARATORS} or a blank at an end, where "
                f"{TITLE} cuts"
            )
        for reason in _unreadable(cache, number, here[number]):
            yield f"has {prefix}, which {reason}"


def _other_ranges(cache: Contents) -> Iterator[str]:
    """Yield the splits whose documents, as MaxText rounds them, are not Megatron's."""
    text = cache.naming["split"]
    if text is None:
        return
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        yield f"has the split {text!r}, and {TITLE} reads numbers with commas between them"
        return
    ends = [0.0]
    for part in parts:
        ends.append(ends[-1] + part / sum(parts))
    sections, sources = cache.table("sections"), cache.table("sources")
    for member in cache.table("members"):
        split = SPLITS.get(member["split"].decode("ascii"))
        if split is None:
            continue
        count = int(sources[member["source"]]["sequences"])
        theirs = [round(end * count) for end in ends[split : split + 2]]
        section = sections[member["section"]]
        if theirs != [int(section["begin"]), int(section["end"])]:
            yield f"has the split {text!r}, which {TITLE} rounds in another way"
            return


def _unreadable(cache: Contents, number: int, prefix: str) -> Iterator[str]:
    """Yield why MaxText would read another corpus than Megatron does."""
    source = cache.table("sources")[number]
    if source["view"] or len(cache.shards_of(number)):
        yield (
            f"is a view, and {TITLE} counts the bytes of the .bin file; make a corpus of it with "
            "`distcache materialize`"
        )
    elif source["documents"] != source["sequences"] or not _has_single_sequences(prefix):
        yield f"has documents of several sequences or of none, and {TITLE} indexes documents"


def _has_single_sequences(prefix: str) -> bool:
    """Return whether each document of a corpus is one sequence."""
    bounds = open_idx(prefix).bounds
    return all(
        np.array_equal(bounds[begin : begin + PIECE], np.arange(begin, begin + size))
        for begin in range(0, len(bounds), PIECE)
        for size in [min(PIECE, len(bounds) - begin)]
    )


MAXTEXT = Framework(
    title=TITLE,
    files=_files,
    settings=_settings,
    refusals=_refusals,
    joint=AS_YAML,
    takes_any_blend=True,
    separators=";|",
)
