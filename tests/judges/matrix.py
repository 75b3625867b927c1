"""A matrix of configurations that covers every pair of values of its axes many times over."""

from __future__ import annotations

import random
from typing import Any

SHAPES = (
    "one",
    "one weighted",
    "many weighted",
    "many weighted",
    "many by size",
    "per split",
    "per split",
    "validation sets",
)
SPLIT_STRINGS = ("99,1,0", "80,15,5", "1", "969, 30, 1", "0,1,0", "98,1.5,.5", "1,1,1")
LENGTHS = (5, 16, 32, 128)
SIZES = (None, 0, 1, 17, 300, 4000)
SURPLUSES = (0.005, 0.005, 0.0, 0.3)
WEIGHTS = (0.5, 1.0, 3.0, 0.1, 1e-4, 30.0, 0.3)


def configuration(number: int, corpora: dict[str, str]) -> dict[str, Any]:
    """Return the fields of one configuration of the matrix; the same for the same number."""
    choose = random.Random(number)
    shape = SHAPES[number % len(SHAPES)]
    per_split = shape in ("per split", "validation sets")
    fields: dict[str, Any] = {
        "sequence_length": choose.choice(LENGTHS),
        "seed": choose.choice((0, 1234, 2**32 - 1)),
        "mid_level_dataset_surplus": choose.choice(SURPLUSES),
        "add_extra_token": choose.random() < 0.7,
        "drop_last_partial_validation_sequence": choose.random() < 0.5,
        "multiple_validation_sets": shape == "validation sets" or choose.random() < 0.2,
        "full_validation": choose.random() < 0.15,
        "tokenizer": choose.choice(({"class": "A", "vocab": [1, {"b": "é"}]}, {"z": 1, "a": None})),
        "samples": {split: choose.choice(SIZES) for split in ("train", "valid", "test")},
    }
    if not per_split:
        fields["split"] = choose.choice(SPLIT_STRINGS)
        weighted = "weighted" in shape
        if weighted:
            fields["samples"] = {split: size or 0 for split, size in fields["samples"].items()}
        fields["blend"] = _blend(choose, corpora, 1 if shape.startswith("one") else None, weighted)
        return fields
    blends = {}
    for split in ("train", "valid", "test"):
        if split != "valid" and choose.random() < 0.25:
            continue
        count = choose.choice((1, None, None))
        weighted = choose.random() < 0.5
        if weighted and (count is None or choose.random() < 0.5):
            fields["samples"][split] = fields["samples"][split] or 0
        blends[split] = _blend(choose, corpora, count, weighted)
    fields["blend_per_split"] = blends
    return fields


def _blend(
    choose: random.Random, corpora: dict[str, str], count: int | None, weighted: bool
) -> list[dict[str, Any]]:
    # Corpora that can stand in any configuration most of the time, all of them now and then.
    names = ["plain", "second", "third", "holes", "long"]
    if choose.random() < 0.25:
        names = list(corpora)
    chosen = [choose.choice(names) for _ in range(count or choose.randint(2, 6))]
    return [
        {"path": corpora[name], **({"weight": choose.choice(WEIGHTS)} if weighted else {})}
        for name in chosen
    ]
