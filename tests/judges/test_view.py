"""An unmodified Megatron-Core trains its loader from a node's store, with the flags as printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch.utils.data import DataLoader

import distcache
from distcache.errors import NotReady
from distcache.megatron.tokenizers import RELEASES, MegatronTokenizer
from tests.judges.megatron import RELEASE, alone
from tests.judges.options import datasets_of, flags_in
from tests.judges.test_samples import require_equal
from tests.judges.tokenizers import ask_megatron
from tests.support import here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.mds_writer import write_mds
from tests.support.processes import start
from tests.support.texts import read_corpus

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TOKENIZER = {"class": "NullTokenizer", "vocab_size": 30000}


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    with alone():
        yield


@pytest.fixture
def small(tmp_path: Path) -> dict[str, str]:
    """Corpora whose tokens all have two bytes."""
    directory = tmp_path / "data"
    directory.mkdir()
    return {name: write_lengths(directory / name, LENGTHS[name]) for name in ("plain", "second")}


def configuration(kind: str, corpora: dict[str, str]) -> dict[str, Any]:
    """Return a configuration of one of the kinds that have options of their own."""
    fields: dict[str, Any] = {
        "sequence_length": 32,
        "seed": 7,
        "samples": {"train": 2000, "valid": 100, "test": 20},
        "tokenizer": TOKENIZER,
    }
    weighted = [
        {"path": path, "weight": w} for path, w in zip(corpora.values(), (1, 3), strict=True)
    ]
    match kind:
        case "blend":
            return fields | {"split": "90,8,2", "blend": weighted}
        case "views":
            return fields | {"split": "90,8,2", "blend": [_view(w) for w in weighted]}
        case "shards":
            return fields | {"split": "90,8,2", "blend": [_shards(w) for w in weighted]}
        case "per split":
            blends = {"train": weighted, "valid": [corpora["plain"]], "test": weighted}
            return fields | {"blend_per_split": blends, "mid_level_dataset_surplus": 0.25}
    return fields | {"split": "90,8,2", "blend": [corpora["plain"]]}


def _view(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a blend with a selection of its corpus."""
    out = f"{entry['path']}-view"
    here.select(entry["path"], out, sample=0.7, min_length=9)
    return {**entry, "path": out}


def _shards(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a blend with its corpus as compressed shards."""
    out = f"{entry['path']}-shards"
    samples = [{"tokens": tokens} for tokens, *_ in read_corpus(entry["path"])]
    data = write_mds(Path(f"{out}-data"), {"tokens": "ndarray:uint16"}, samples, codec="zstd")
    here.index([data], out)
    return {**entry, "path": out}


def listing(root: Path) -> dict[str, int]:
    """Return every file of a directory and when it was written."""
    return {str(path): path.lstat().st_mtime_ns for path in root.rglob("*")}


@pytest.mark.few(5)
@pytest.mark.parametrize("kind", ["blend", "per split", "one corpus", "views", "shards"])
@pytest.mark.parametrize("missing", ["nothing", "tokenizer"])
def test_megatron_trains_from_the_store(
    kind: str, missing: str, small: dict[str, str], tmp_path: Path
) -> None:
    """The shared cache cannot be read, nothing is written, and batches are distcache's."""
    fields = configuration(kind, small)
    if missing == "tokenizer":
        del fields["tokenizer"]
    shared, root = tmp_path / "shared", tmp_path / "local"
    cache = Path(here.build(fields, shared, "c").path)
    described = tmp_path / "description.txt"
    described.write_text(json.dumps({"tokenizer": TOKENIZER}))
    words = ["localize", cache, "--store", root, "--megatron"]
    if missing == "tokenizer":
        assert start(words).returncode == 2
        words += ["--tokenizer", described]
    done = start(words)
    assert done.returncode == 0, done.stderr
    kept = json.loads(next(root.glob("megatron/*/distcache.json")).read_text())
    flags = flags_in(done.stdout)
    assert flags == [word for line in kept["arguments"] for word in line.split()]
    assert "--per-dataset-sequences-path" in flags
    ours = [distcache.open(cache, local=root).dataset(split) for split in ("train", "valid")]
    assert all(len(dataset) >= 100 for dataset in ours)  # they have opened the copy
    shared.rename(tmp_path / "hidden")
    before = listing(tmp_path)
    sizes = [fields["samples"][split] for split in ("train", "valid", "test")]
    theirs = datasets_of(flags, sizes, TOKENIZER, 30000)
    for mine, judge in zip(ours, theirs, strict=False):
        assert len(mine) == len(judge)
        loaders = (DataLoader(data, batch_size=8) for data in (mine, judge))
        for found, expected in zip(*loaders, strict=True):
            require_equal(found, expected)
    assert listing(tmp_path) == before
    assert distcache.open(cache, local=root).is_local
    with pytest.raises(NotReady):
        distcache.open(cache)


@pytest.mark.parametrize("kind", ["blend", "per split", "one corpus"])
def test_a_missing_file_is_an_error(kind: str, small: dict[str, str], tmp_path: Path) -> None:
    """With the options as printed; without them Megatron would build it again, on one rank."""
    fields = configuration(kind, small)
    cache = Path(here.build(fields, tmp_path / "shared", "c").path)
    done = start(["export", cache, "--out", tmp_path / "out"])
    flags = shlex.split(done.stdout.replace("\\\n", " "), comments=True)
    assert ("--dataloader-fast-cache-load" in flags) == (kind == "per split")
    sizes = [fields["samples"][split] for split in ("train", "valid", "test")]
    for path in (tmp_path / "out").glob("*-train-shuffle_index.npy"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shuffle_index\.npy"):
        datasets_of(flags, sizes, TOKENIZER, 30000)[0][0]
    assert not list((tmp_path / "out").glob("*-train-shuffle_index.npy"))


BY_OPTIONS: list[dict[str, Any]] = [
    {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "meta-llama/Llama-3.1-8B"},
    {"tokenizer_type": "SentencePieceTokenizer", "tokenizer_model": "/m/pieces.model"},
    {"tokenizer_type": "TikTokenizer", "tokenizer_model": "/m/t.json", "tiktoken_pattern": "v2"},
    {"tokenizer_type": "NullTokenizer", "vocab_size": 30000},
]


@pytest.mark.parametrize("tokenizer", BY_OPTIONS, ids=lambda options: options["tokenizer_type"])
@pytest.mark.parametrize("kind", ["blend", "per split"])
def test_names_of_a_release(
    kind: str,
    tokenizer: dict[str, Any],
    small: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a cache that another release's names were meant for: all found, none written."""
    other = RELEASES[0 if RELEASES[-1] == RELEASE else -1]
    fields = configuration(kind, small) | {"tokenizer": {"megatron": other, **tokenizer}}
    cache = Path(here.build(fields, tmp_path / "shared", "c").path)
    releases = f"{other},{RELEASE}"
    done = start(["localize", cache, "--store", tmp_path / "local", "--megatron", releases])
    assert done.returncode == 0, done.stderr
    before = listing(tmp_path)
    named = ask_megatron(msgspec.convert(tokenizer, MegatronTokenizer), monkeypatch)
    sizes = [fields["samples"][split] for split in ("train", "valid", "test")]
    found = datasets_of(flags_in(done.stdout), sizes, named, 30000)
    assert all(len(dataset) for dataset in found)
    assert listing(tmp_path) == before


def test_wide_tokens_are_left_to_the_tokenizer(tmp_path: Path) -> None:
    """With 4 bytes a token, Megatron is right only for large vocabularies: that is a note."""
    corpus = write_lengths(tmp_path / "wide", LENGTHS["plain"], "i4")
    fields = {"sequence_length": 32, "split": "9,1,0", "blend": [corpus], "tokenizer": TOKENIZER}
    cache = here.build(fields, tmp_path / "shared").path
    done = start(["localize", cache, "--store", tmp_path / "local", "--megatron"])
    assert "--per-dataset-sequences-path" not in flags_in(done.stdout)
    assert "if the tokenizer has more than 65536 tokens, add" in done.stdout
