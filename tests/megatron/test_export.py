"""An export has Megatron's names, and the options that make Megatron ask for them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.cache import open_cache
from distcache.cache.corpus_places import prefix_renamer
from distcache.cache.deal import Deal
from distcache.errors import CacheCorrupt, ConfigError
from distcache.megatron.export import export, export_in, wrong_files
from distcache.megatron.names import Naming
from distcache.megatron.options import config_from_options
from distcache.megatron.tokenizers import RELEASES, MegatronTokenizer, identifiers
from tests.support import here


def test_names_hold_the_digest_of_the_description(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Of each file's description, with the class and the split."""
    made = export(open_cache(here.build(blend_config, shared).path), tmp_path / "out")
    for path in (tmp_path / "out").glob("*-description.txt"):
        digest, kind, split, _ = path.name.split("-")
        assert hashlib.md5(path.read_bytes()).hexdigest() == digest
        described = json.loads(path.read_text())
        assert described["class"] == kind
        assert split in (described.get("index_split"), described["split"])
    assert len(made.files) == 9 * 4 + 3 * 3


def test_the_options_ask_for_what_is_there(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Given back to Megatron's own parser, they are the configuration."""
    cache = open_cache(here.build(blend_config, shared).path)
    made = export(cache, tmp_path / "out")
    words = [word for line in made.arguments for word in shlex.split(line)]
    assert words[:2] == ["--data-cache-path", str(tmp_path / "out")]
    config = config_from_options([*words, "--global-batch-size", "8"])
    assert [(s.path, s.weight) for s in config.blends()["train"]] == [
        (source["path"], source["weight"]) for source in blend_config["blend"]
    ]
    assert (config.split, config.seed) == (blend_config["split"], blend_config["seed"])
    assert config.samples_of("train") == blend_config["samples"]["train"]


def test_blends_of_each_split_come_as_a_file(
    corpora: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    """The one that ``--per-split-data-args-path`` reads."""
    fields = {
        "sequence_length": 16,
        "samples": {"train": 100, "valid": 10, "test": 0},
        "blend_per_split": {
            "train": [
                {"path": corpora["plain"], "weight": 1},
                {"path": corpora["second"], "weight": 3},
            ],
            "valid": [corpora["third"]],
        },
        "tokenizer": {},
    }
    made = export(open_cache(here.build(fields, shared).path), tmp_path / "out")
    words = [word for line in made.arguments for word in shlex.split(line)]
    place = words.index("--per-split-data-args-path")
    options = [*words[place : place + 2], "--seq-length", "16", "--train-samples", "100"]
    config = config_from_options([*options, "--global-batch-size", "1"])
    assert list(config.blends()) == ["train", "valid"]
    assert config.prefixes() == [corpora["plain"], corpora["second"], corpora["third"]]


def test_what_no_option_says_is_a_warning(
    corpora: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    """What no option says is a warning, and one epoch of validation is an option of its own."""
    fields = {
        "sequence_length": 16,
        "split": "90,10,0",
        "samples": {"train": 100, "valid": None, "test": 0},
        "blend": [corpora["plain"]],
        "add_extra_token": False,
        "tokenizer": {},
    }
    made = export(open_cache(here.build(fields, shared).path), tmp_path / "out")
    assert "--full-validation" in made.arguments
    assert "add_extra_token_to_sequence=False" in made.warnings[0]


def test_other_paths_have_other_names(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """The path that training will be given is in Megatron's digest."""
    cache = open_cache(here.build(blend_config, shared).path)
    original = export(cache, tmp_path / "here")
    start = str(Path(blend_config["blend"][0]["path"]).parent)
    there = export(cache, tmp_path / "there", prefix_renamer([(start, "/local/ssd")]))
    assert not set(original.files) & set(there.files)
    described = (tmp_path / "there" / there.files[3]).read_text()
    assert json.loads(described)["dataset_path"].startswith("/local/ssd/")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b/c", "/x/c"),
        ("/a/b", "/x"),
        ("/a/bc", "/y/bc"),
        ("/q/a/b", "/q/a/b"),
    ],
)
def test_the_longest_prefix_wins(path: str, expected: str) -> None:
    """And only whole parts of a path are replaced."""
    assert prefix_renamer([("/a", "/y"), ("/a/b/", "/x")])(path) == expected


def test_an_unknown_tokenizer_is_asked_for(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """An unknown tokenizer is asked for; without one there is no name; a given one comes first."""
    del blend_config["tokenizer"]
    cache = open_cache(here.build(blend_config, shared).path)
    with pytest.raises(ConfigError, match="--tokenizer FILE"):
        export(cache, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert export(cache, tmp_path / "out", naming=Naming({"class": "Y"})).files


def test_a_spoilt_array_is_not_exported(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Nor is its description, which Megatron looks for first."""
    path = Path(here.build(blend_config, shared).path)
    view = open_cache(path).arrays("sections", 0)["sample_index"]
    path.chmod(0o644)
    with open(path, "r+b") as stream:
        stream.seek(view.offset)
        stream.write(b"\x07")
    with pytest.raises(CacheCorrupt, match="sample_index"):
        export(open_cache(path), tmp_path / "out", threads=1)
    for description in (tmp_path / "out").glob("*-GPTDataset-*-description.txt"):
        stem = description.name.removesuffix("-description.txt")
        assert (tmp_path / "out" / f"{stem}-sample_index.npy").exists()
    assert not list((tmp_path / "out").glob(".*"))


def test_a_file_in_the_way(blend_config: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """A target that is no directory is one clear error."""
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is not a directory"):
        export(open_cache(here.build(blend_config, shared).path), tmp_path / "out")


def test_a_directory_in_the_way(blend_config: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """It is named, and nothing is written."""
    cache = open_cache(here.build(blend_config, shared).path)
    (name, *_) = (path for path in export(cache, tmp_path / "out").files if path.endswith(".npy"))
    (tmp_path / "other" / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{name}: is a directory"):
        export(cache, tmp_path / "other")
    assert not list((tmp_path / "other").glob("*.txt"))


def test_names_that_are_no_text(blend_config: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """Names that are no text are refused before anything is written."""
    cache = open_cache(here.build(blend_config, shared).path)
    with pytest.raises(ConfigError, match="is not UTF-8"):
        export(cache, tmp_path / "\udcff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        export(cache, tmp_path / "out", lambda prefix: prefix + "\udcff")
    assert not (tmp_path / "out").exists()


def test_what_a_killed_export_has_left(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """It is removed by the next one, after an hour; other files stay."""
    cache = open_cache(here.build(blend_config, shared).path)
    array = next(name for name in export(cache, tmp_path).files if name.endswith(".npy"))
    old, recent = tmp_path / f".{array}.0123abcd.part", tmp_path / f".{array}.4567abcd.part"
    other = tmp_path / ".mine.part"
    for path in (old, recent, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (1, 1))
    export(cache, tmp_path)
    assert sorted(tmp_path.glob(".*.part")) == sorted([recent, other])


OF_RELEASES = Naming(releases=RELEASES)


@pytest.mark.parametrize("links", [True, False])
def test_names_of_releases(
    links: bool,
    blend_config: dict[str, Any],
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are hard links to the same arrays, or copies where the filesystem has none."""
    options = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "m"}
    blend_config["tokenizer"] = {"megatron": "0.16", **options}
    cache = open_cache(here.build(blend_config, shared).path)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    out = tmp_path / "out"
    one = export(cache, out)
    made = export(cache, out, naming=OF_RELEASES)
    assert len(made.files) == len(set(made.files)) == 3 * len(one.files)  # 0.18 is 0.19
    assert set(one.files) < set(made.files)
    described = {json.dumps(tokenizer_in(path)) for path in out.glob("*-description.txt")}
    assert described == {json.dumps(identifiers(LLAMA, release)) for release in RELEASES}
    counts = {path.stat().st_nlink for path in out.glob("*.npy")}
    assert counts == ({3} if links else {1})
    assert not list(wrong_files(cache, out, naming=OF_RELEASES))
    before = {path: path.stat().st_ctime_ns for path in out.glob("*.npy")}
    export(cache, out, naming=OF_RELEASES)
    assert {path: path.stat().st_ctime_ns for path in out.glob("*.npy")} == before


LLAMA = MegatronTokenizer(tokenizer_type="HuggingFaceTokenizer", tokenizer_model="m")


def refuse(*_: Any, **__: Any) -> None:
    """Stand for a filesystem without hard links."""
    raise OSError(errno.EOPNOTSUPP, "no links")


def tokenizer_in(path: Path) -> Any:
    """Return the tokenizer of a description."""
    described = json.loads(path.read_text())
    return described.get("datasets", [described])[0]["tokenizer"]


def test_a_spoilt_array_is_replaced_under_all_names(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """A spoilt array is replaced under all names, although they are one file."""
    blend_config["tokenizer"] = {"megatron": "0.16", "tokenizer_type": "NullTokenizer"}
    cache = open_cache(here.build(blend_config, shared).path)
    naming = Naming({"tokenizer_type": "NullTokenizer"}, RELEASES)
    made = export(cache, tmp_path, naming=naming)
    spoilt = next(path for path in tmp_path.glob("*-document_index.npy"))
    content = bytearray(spoilt.read_bytes())
    content[-1] ^= 1
    spoilt.write_bytes(content)
    assert len(list(wrong_files(cache, tmp_path, naming=naming))) == spoilt.stat().st_nlink
    assert export(cache, tmp_path, naming=naming).files == made.files
    assert not list(wrong_files(cache, tmp_path, naming=naming))


def test_names_for_fim(blend_config: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """They have its class; by an option, or by the configuration that the cache was built with."""
    plain = open_cache(here.build(blend_config, shared).path)
    blend_config["fim_data"] = True
    fim = open_cache(here.build(blend_config, shared / "fim").path)
    assert fim.key == plain.key
    expected = export(plain, tmp_path / "a", naming=Naming(fim=True)).files
    assert export(fim, tmp_path / "b").files == expected
    assert {name.split("-")[1] for name in expected} == {"GPTFIMDataset", "BlendedDataset"}
    assert not set(expected) & set(export(plain, tmp_path / "c").files)


def test_releases_without_the_tokenizers_options(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """They are refused: a description is that of one release."""
    cache = open_cache(here.build(blend_config, shared).path)
    with pytest.raises(ConfigError, match="need Megatron's options of the tokenizer"):
        export(cache, tmp_path / "out", naming=OF_RELEASES)


def test_options_without_a_release(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Options without a release need one when names are made."""
    blend_config["tokenizer"] = {"tokenizer_type": "NullTokenizer"}
    cache = open_cache(here.build(blend_config, shared).path)
    with pytest.raises(ConfigError, match="megatron: missing; name the release"):
        export(cache, tmp_path / "out")
    assert export(cache, tmp_path / "out", naming=Naming(releases=("0.19",))).files


def test_a_directory_belongs_to_one_cache(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """The names do not say in which order samples are; damaged arrays of its own are replaced."""
    caches = [
        open_cache(here.build(blend_config | more, shared, f"c{number}").path)
        for number, more in enumerate(({}, {"shuffle": "passes"}, {"pack": True}))
    ]
    for first in caches:
        directory = tmp_path / f"of-{first.identity['order']}"
        made = export(first, directory)
        for other in caches:
            if other is not first:
                with pytest.raises(ConfigError, match="choose a separate directory"):
                    export(other, directory)
        array = directory / next(name for name in made.files if name.endswith("sample_index.npy"))
        array.write_bytes(array.read_bytes()[:-8] + bytes(8))
        export(first, directory)
        assert not list(wrong_files(first, directory))
    unnamed = tmp_path / "of-megatron"
    (unnamed / "distcache.json").unlink()
    with pytest.raises(ConfigError, match="are of Megatron itself"):
        export(caches[1], unnamed)
    for text in ("", "{}"):
        export(caches[0], unnamed)
        (unnamed / "distcache.json").write_text(text)
    assert export(caches[0], unnamed) == export_in(unnamed)


def test_what_packed_rows_need(blend_config: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """Is printed as options and warnings."""
    made = export(
        open_cache(here.build(blend_config | {"pack": True}, shared).path), tmp_path / "out"
    )
    assert "--eod-mask-loss" in made.arguments
    assert "--dataloader-defer-npy-index-mmap" not in made.arguments
    assert any("rows are packed" in warning for warning in made.warnings)
    assert made.packed


def test_two_exports_at_once(blend_config: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """Of different orders: the later one is refused, and changes nothing."""
    caches = [
        open_cache(here.build(blend_config | more, shared, f"c{number}").path)
        for number, more in enumerate(({}, {"shuffle": "passes"}))
    ]
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(export, cache, tmp_path / "out") for cache in caches]
    refused = [isinstance(found.exception(), ConfigError) for found in done]
    assert sorted(refused) == [False, True]
    assert not list(wrong_files(caches[refused.index(False)], tmp_path / "out"))


@pytest.mark.parametrize("is_blend", [True, False])
def test_steps_are_dealt(
    is_blend: bool, blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Arrays of training alone are permuted, and written anew each time."""
    fields = (
        blend_config if is_blend else blend_config | {"blend": [blend_config["blend"][0]["path"]]}
    )
    cache = open_cache(here.build(fields, shared).path)
    plain, directory, deal = tmp_path / "plain", tmp_path / "out", Deal(64, 8, 2, 3)
    files = export(cache, plain).files
    made = export(cache, directory, deal=deal)
    assert (made.files, made.deal) == (files, "64x8x2@3")
    assert any("--calculate-per-token-loss" in warning for warning in made.warnings)
    differing = [
        name for name in files if (plain / name).read_bytes() != (directory / name).read_bytes()
    ]
    names = ["dataset_index", "dataset_sample_index"] if is_blend else ["shuffle_index"]
    assert sorted(name.partition("-train-")[2] for name in differing) == [f"{n}.npy" for n in names]
    for name in differing:
        before, after = np.load(plain / name), np.load(directory / name)
        assert np.array_equal(before[:3], after[:3])
        for begin in range(3, len(before), 64):
            assert sorted(before[begin : begin + 64]) == sorted(after[begin : begin + 64])
        whole = (directory / name).read_bytes()
        (directory / name).write_bytes(whole[:-8] + bytes(8))
        assert export(cache, directory, deal=deal) == made
        assert (directory / name).read_bytes() == whole
    for other in (None, Deal(64, 8, 1, 3)):
        with pytest.raises(ConfigError, match="of another cache, deal or trainer"):
            export(cache, directory, deal=other)


def test_validation_is_not_dealt(corpora: dict[str, str], shared: Path, tmp_path: Path) -> None:
    """Even where it draws the same section as training."""
    fields = {
        "sequence_length": 32,
        "samples": {"train": 400, "valid": 400, "test": 0},
        "blend_per_split": {"train": [corpora["plain"]], "valid": [corpora["plain"]]},
        "tokenizer": {"class": "X"},
    }
    cache = open_cache(here.build(fields, shared).path)
    made = export(cache, tmp_path / "out", deal=Deal(40, 4, 2))
    files = {
        name.partition("-")[2]: np.load(tmp_path / "out" / name)
        for name in made.files
        if name.endswith("shuffle_index.npy")
    }
    train, valid = (files[f"GPTDataset-{split}-shuffle_index.npy"] for split in ("train", "valid"))
    view = cache.arrays("sections", 0)["shuffle_index"]
    assert np.array_equal(valid, cache.read(view))
    assert not np.array_equal(train, valid)


def test_steps_that_cannot_be_dealt(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Of a trainer with an order of its own, and of a split that has no whole step."""
    cache = open_cache(here.build(blend_config, shared).path)
    with pytest.raises(ConfigError, match="shuffles samples itself"):
        export(cache, tmp_path / "out", naming=Naming(automodel=True), deal=Deal(64, 8, 2))
    with pytest.raises(ConfigError, match="a step has 5000 samples"):
        export(cache, tmp_path / "out", deal=Deal(5000, 10, 1))
    assert not (tmp_path / "out").exists()
