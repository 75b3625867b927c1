"""Keys, arrays and exported bytes of caches that this release writes stay what they are.

`python -m tests.builder.test_golden` writes `golden.json` anew; only a change of the format or of
an order that is meant does that.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from distcache.cache import open_cache
from distcache.cache.inspect import inspect_document
from distcache.megatron.export import export
from tests.support import here
from tests.support.corpora import write_corpora

GOLDEN: Final = Path(__file__).resolve().parent / "golden" / "golden.json"
TOKENIZER: Final = {"tokenizer": {"class": "Made", "tokenizer_path": "made-up"}}
BASE: Final[dict[str, Any]] = {"sequence_length": 64, "seed": 7, **TOKENIZER}
WEIGHTED: Final = [
    {"path": "plain", "weight": 0.5},
    {"path": "second", "weight": 0.3},
    {"path": "holes", "weight": 0.2},
]
SAMPLES: Final = {"train": 700, "valid": 40, "test": 10}
PHASES: Final = [{"weights": [1, 2, 0], "samples": 200}, {"weights": [0, 1, 3], "samples": 300}]

CASES: Final[dict[str, dict[str, Any]]] = {
    "single": {"blend": ["plain"], "split": "90,8,2", "samples": SAMPLES},
    "one_epoch": {"blend": ["third"], "split": "1,0,0"},
    "weighted": {"blend": WEIGHTED, "split": "90,8,2", "samples": SAMPLES},
    "exhaustive": {"blend": ["plain", "second", "third"], "split": "98,2,0"},
    "per_split": {
        "blend_per_split": {"train": WEIGHTED[:2], "valid": ["third"], "test": ["long"]},
        "samples": SAMPLES,
    },
    "validation_sets": {
        "blend_per_split": {"train": ["plain"], "valid": ["third", "long"]},
        "multiple_validation_sets": True,
        "samples": {"train": 100, "valid": 30},
    },
    "fused": {
        "blend": WEIGHTED,
        "split": "90,8,2",
        "samples": SAMPLES,
        "blend_arithmetic": "fused",
    },
    "no_extra_token": {
        "blend": ["plain"],
        "split": "90,8,2",
        "samples": SAMPLES,
        "add_extra_token": False,
        "drop_last_partial_validation_sequence": False,
    },
    "passes": {"blend": WEIGHTED, "split": "90,8,2", "samples": SAMPLES, "shuffle": "passes"},
    "packed": {"blend": WEIGHTED, "split": "90,8,2", "samples": SAMPLES, "pack": True},
    "phases": {
        "blend": ["plain", "second", "third"],
        "split": "95,5,0",
        "phases": PHASES,
        "samples": {"valid": 20},
        "shuffle": "passes",
    },
}


def described(case: str, directory: Path) -> dict[str, Any]:
    """Build a case, and return its key, the digests of its arrays and of what it exports."""
    write_corpora(directory)
    built = here.build({**BASE, **CASES[case]}, directory / "caches", case)
    cache = open_cache(built.path)
    document = inspect_document(cache)
    export(cache, directory / "exported", os.path.basename)
    exported = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((directory / "exported").glob("*.npy"))
    }
    return {
        "key": cache.key,
        "arrays": [
            [table, name, array["dtype"], array["shape"], array["digest"]]
            for table in ("sections", "blends")
            for row in document[table]
            for name, array in row["arrays"].items()
        ],
        "exported": exported,
    }


@pytest.mark.parametrize("case", list(CASES))
def test_a_cache_stays_what_it_is(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key, its arrays, and the names and bytes of its export are those of the record."""
    monkeypatch.chdir(tmp_path)
    assert described(case, Path()) == json.loads(GOLDEN.read_text())[case]


def main() -> None:
    """Write the record anew."""
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            found[case] = described(case, Path())
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
