"""Lists of MDS data sets, as loaders have them, as corpora and a blend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import distcache
from distcache.builder.configuration import read_document
from distcache.cache import open_cache
from distcache.edit.mds_scan import MdsOptions
from distcache.edit.mix import Mixed, MixOptions, mix
from distcache.edit.mix_recipe import recipe_from
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.ranks.communicator import Communicator
from tests.support import here
from tests.support.mds_writer import write_mds
from tests.support.processes import start
from tests.support.threads import run_ranks

ROWS = MixOptions(MdsOptions(column=""))


def write_sets(tmp_path: Path, sizes: dict[str, int]) -> dict[str, str]:
    """Write data sets of rows, and return their directories."""
    return {
        name: str(write_mds(tmp_path / name, {"n": "int"}, [{"n": n} for n in range(size)]))
        for name, size in sizes.items()
    }


def run_mix(document: dict[str, Any], out: Path, **options: Any) -> dict[str, Any]:
    """Mix, and return the configuration."""
    known = {name: getattr(ROWS, name) for name in ROWS.__struct_fields__}
    done = here.mix(recipe_from(document), out, **known | options)
    fields: dict[str, Any] = json.loads(Path(done.path).read_text())
    assert done.samples == fields["samples"]["train"]
    return fields


def weights_of(fields: dict[str, Any]) -> list[float]:
    """Return the weights of training."""
    return [entry["weight"] for entry in fields["blend_per_split"]["train"]]


@pytest.mark.parametrize(
    ("more", "weights", "samples"),
    [
        ([{}, {}], [30, 10], 40),
        ([{"choose": 12}, {"choose": 25}], [12, 25], 37),
        ([{"repeat": 0.5}, {"repeat": 3}], [15, 30], 45),
        ([{"choose": 0}, {}], [10], 10),
        ([{"proportion": 0.75}, {"proportion": 0.25}], [0.75, 0.25], 40),
    ],
)
def test_shares_are_as_streaming_has_them(
    more: list[dict[str, Any]], weights: list[float], samples: int, tmp_path: Path
) -> None:
    """`choose` samples of a pass, `repeat` passes, or shares; a set without samples is left out."""
    paths = write_sets(tmp_path, {"a": 30, "b": 10})
    train = [
        {"name": name, "path": paths[name], "task": "asr", **extra}
        for name, extra in zip("ab", more, strict=True)
    ]
    fields = run_mix({"train": train}, tmp_path / "mix")
    assert weights_of(fields) == weights
    assert fields["samples"]["train"] == samples
    again = run_mix({"train": train}, tmp_path / "mix", samples=1000)
    assert again["samples"]["train"] == 1000


@pytest.mark.parametrize("extra", [{"choose": 0}, {"repeat": 1e15}])
def test_a_blend_that_cannot_be_built(extra: dict[str, Any], tmp_path: Path) -> None:
    """A blend that cannot be built is not written."""
    paths = write_sets(tmp_path, {"a": 30})
    with pytest.raises(ConfigError, match="expected 1 to"):
        run_mix({"train": [{"path": paths["a"], **extra}]}, tmp_path / "mix")
    assert not (tmp_path / "mix" / "blend.json").exists()


def test_every_prefix_holds_each_within_one_of_its_share(tmp_path: Path) -> None:
    """And without replacement, until a set has come once; `choose` above its size takes passes."""
    sizes = {"a": 100, "b": 40, "c": 7}
    chosen = {"a": 60, "b": 30, "c": 21}
    paths = write_sets(tmp_path, sizes)
    train = [{"name": name, "path": paths[name], "choose": chosen[name]} for name in sizes]
    fields = run_mix({"train": train}, tmp_path / "mix", samples=1110)
    cache = open_cache(here.build(fields, tmp_path / "caches").path)
    views = cache.arrays("blends", 0)
    datasets = cache.read(views["dataset_index"])
    taken = cache.read(views["dataset_sample_index"])
    steps = np.arange(1, len(datasets) + 1)
    for number, name in enumerate(sizes):
        share = np.cumsum(datasets == number) - steps * chosen[name] / 111
        assert np.abs(share).max() <= 1
        row = int(cache.table("members")["section"][number])
        order = cache.read(cache.arrays("sections", row)["document_index"])
        rows = order[taken[datasets == number]]
        for begin in range(0, len(rows) - sizes[name] + 1, sizes[name]):
            assert len(set(rows[begin : begin + sizes[name]].tolist())) == sizes[name]


def test_validation_sets_are_datasets_of_their_own(tmp_path: Path) -> None:
    """Validation sets are datasets of their own of at most so many samples, the same each time."""
    paths = write_sets(tmp_path, {"t": 50, "v1": 30, "v2": 5})
    document = {
        "train": [{"path": paths["t"]}],
        "valid": [{"path": paths["v1"]}, {"path": paths["v2"], "choose": 9}],
    }
    fields = run_mix(document, tmp_path / "mix", validation=12)
    assert [entry["samples"] for entry in fields["blend_per_split"]["valid"]] == [12, 5]
    cache = open_cache(here.build(fields, tmp_path / "caches").path)
    members = cache.table("members")
    valid = members[members["split"] == b"valid"]
    assert valid["requested"].tolist() == [12, 5]
    wrong = {**fields, "multiple_validation_sets": False}
    with pytest.raises(ConfigError, match="has its own samples"):
        here.build(wrong, tmp_path / "caches")
    assert (valid["blend"] == -1).all()
    opened = distcache.open(here.build(fields, tmp_path / "caches").path)
    sets = [opened.rows("valid", number) for number in range(2)]
    assert [len(rows) for rows in sets] == [12, 5]
    assert len({row["n"] for row in sets[0]}) == 12
    assert [row["n"] for row in sets[0]] == [row["n"] for row in opened.rows("valid", 0)]


def test_one_data_set_gives_what_is_chosen(tmp_path: Path) -> None:
    """Not the whole passes that it is taken from."""
    paths = write_sets(tmp_path, {"a": 100})
    for more, options, size in (
        ({"choose": 30}, {}, 30),
        ({}, {"samples": 7}, 7),
        ({"choose": 130}, {}, 130),
    ):
        fields = run_mix({"train": [{"path": paths["a"], **more}]}, tmp_path / "mix", **options)
        rows = distcache.open(here.build(fields, tmp_path / "caches").path).rows("train")
        assert len(rows) == size
        assert len({row["n"] for row in rows}) == min(size, 100)


def test_tokens_are_mixed_by_the_samples_of_training(tmp_path: Path) -> None:
    """Which a pass has, however long the records of the shards are."""
    for name, length in (("a", 100), ("b", 10)):
        samples = [{"tokens": np.arange(length, dtype="i4")} for _ in range(20)]
        write_mds(tmp_path / name, {"tokens": "ndarray:int32"}, samples)
    train = [{"path": str(tmp_path / name)} for name in "ab"]
    tokens = MdsOptions(column="tokens")
    fields = run_mix({"train": train}, tmp_path / "mix", mds=tokens, sequence_length=25)
    assert weights_of(fields) == [80, 8]
    assert fields["samples"]["train"] == 88


def test_a_streaming_yaml_is_understood(tmp_path: Path) -> None:
    """Streams by name, with local directories and splits; what else they have is ignored."""
    samples = [{"n": n} for n in range(9)]
    write_mds(tmp_path / "c4" / "train", {"n": "int"}, samples)
    write_mds(tmp_path / "c4" / "val", {"n": "int"}, samples)
    text = {
        "streams": {
            "c4 en": {"local": str(tmp_path / "c4"), "split": "train", "repeat": 2.0, "batch": 1}
        },
        "valid": [{"local": str(tmp_path / "c4"), "split": "val"}],
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(text))
    fields = run_mix(read_document(tmp_path / "mix.yaml"), tmp_path / "mix")
    assert weights_of(fields) == [18]
    blends = fields["blend_per_split"]
    assert [Path(blends[split][0]["path"]).name for split in ("train", "valid")] == [
        "c4-en",
        "c4-val",
    ]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, "expected a list of data sets"),
        ({"train": "x"}, "expected a list of data sets"),
        ({"train": [{"name": "x"}]}, r"\$\.train\[0\]: has no path"),
        ({"train": [{"path": "/x", "choose": -1}]}, r"\$\.train\[0\]: .*choose"),
        ({"train": [{"path": "/x", "choose": 1, "repeat": 2}]}, "has choose and repeat"),
        ({"train": [{"path": "/x"}, {"path": "/y/x"}]}, "is the name of several"),
        ({"train": [{"path": "."}]}, r"its path \. names no corpus; give it a name"),
        ({"train": [{"path": "/x", "choose": 10**400}]}, r"\$\.train\[0\]: .*choose"),
        ({"train": [{"path": "/x", "proportion": 1}, {"path": "/y"}]}, "for all data sets or for"),
    ],
)
def test_faults_of_a_list_are_named(document: dict[str, Any], expected: str) -> None:
    """Faults of a list are named with their place in it."""
    with pytest.raises(ConfigError, match=expected):
        recipe_from(document)


def test_faults_of_all_data_sets_come_together(tmp_path: Path) -> None:
    """Those that are right are indexed."""
    paths = write_sets(tmp_path, {"a": 3})
    train = [{"path": paths["a"]}, {"path": str(tmp_path / "no")}, {"path": str(tmp_path / "nor")}]
    with pytest.raises(NotReady) as caught:
        run_mix({"train": train}, tmp_path / "mix")
    assert len(caught.value.problems) == 2
    assert (tmp_path / "mix" / "a.idx").exists()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_exit_code_is_that_of_the_first_bad_data_set(ranks: int, tmp_path: Path) -> None:
    """The exit code is that of the first bad data set of the list, whoever indexes it."""
    paths = write_sets(tmp_path, {"a": 3, "b": 20, "c": 3})
    (tmp_path / "b" / "shard.00001.mds").write_bytes(b"x")
    train = [{"path": path} for path in (paths["a"], paths["b"], str(tmp_path / "no"), paths["c"])]

    def make(communicator: Communicator) -> Mixed:
        return mix(communicator, recipe_from({"train": train}), str(tmp_path / "mix"), ROWS)

    outcomes, aborted = run_ranks(ranks, make)
    assert aborted == []
    assert [type(outcome) for outcome in outcomes] == [CorpusError] * ranks
    first, second = outcomes[0].problems  # type: ignore[union-attr]
    assert "shard.00001.mds" in first
    assert "no/index.json" in second


def test_a_file_in_the_place_of_the_corpora(tmp_path: Path) -> None:
    """A file instead of the corpora is a matter of --out."""
    paths = write_sets(tmp_path, {"a": 3})
    (tmp_path / "mix").touch()
    with pytest.raises(ConfigError, match="is a file; expected a directory"):
        run_mix({"train": [{"path": paths["a"]}]}, tmp_path / "mix")
    with pytest.raises(ConfigError, match="/proc/mix: cannot be made; choose another --out"):
        run_mix({"train": [{"path": paths["a"]}]}, Path("/proc/mix"))


def test_ranks_divide_the_data_sets(tmp_path: Path) -> None:
    """And write what one writes."""
    paths = write_sets(tmp_path, {f"s{n}": n + 1 for n in range(9)})
    recipe = recipe_from({"train": [{"path": path} for path in paths.values()]})

    def make(communicator: Communicator) -> Mixed:
        return mix(communicator, recipe, str(tmp_path / "mix"), ROWS)

    outcomes, aborted = run_ranks(3, make)
    assert aborted == []
    assert outcomes[0] == outcomes[1] == outcomes[2]
    fields = json.loads((tmp_path / "mix" / "blend.json").read_text())
    assert weights_of(fields) == list(range(1, 10))


def test_lists_as_users_of_streaming_have_them(tmp_path: Path) -> None:
    """A cache beside its source, no split, shares of nothing, loaders of llm-foundry."""
    sets = write_sets(tmp_path, {"web/train": 30, "web/val": 9, "code": 10, "part": 3})
    web = str(Path(sets["web/train"]).parent)
    remote = {"remote": web, "local": sets["part"], "split": "train"}
    assert run_mix({"streams": {"web": remote}}, tmp_path / "a")["samples"]["train"] == 30
    away = {"remote": "s3://bucket/code", "local": sets["code"], "split": None}
    assert run_mix({"streams": [away]}, tmp_path / "b")["samples"]["train"] == 10
    shares = [{"local": sets["code"], "proportion": 0}, {"local": sets["part"], "proportion": 1}]
    assert weights_of(run_mix({"streams": shares}, tmp_path / "c")) == [1]
    loaders = {
        "train_loader": {"name": "text", "dataset": {"streams": {"web": remote}, "shuffle": True}},
        "eval_loader": {"label": "v", "dataset": {"local": web, "split": "val"}},
    }
    for document in (loaders, {"train": [remote], "valid": [{"path": sets["web/val"]}]}):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        fields = run_mix(document, out)
        assert fields["samples"]["train"] == 30
        assert [entry["samples"] for entry in fields["blend_per_split"]["valid"]] == [9]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"train": [{"path": "a", "chose": 3}]}, "chose: unknown field; did you mean choose"),
        ({"train": [{"path": "a", "repeats": 3}]}, "did you mean repeat"),
        ({"train": [{"path": "a", "weight": 3}]}, r"weight: give choose, proportion or repeat"),
        ({"train": [{"path": "a", "epochs": 3}]}, r"epochs: give choose, proportion or repeat"),
        ({"train": [{"path": "a"}], "tets": [{"path": "b"}]}, r"\$.tets: unknown field"),
    ],
)
def test_nothing_is_dropped_without_a_word(document: dict[str, Any], problem: str) -> None:
    """Neither a misspelt field nor a key that holds data sets."""
    with pytest.raises(ConfigError, match=problem):
        recipe_from(document)


def test_what_is_passed_over_is_named(tmp_path: Path) -> None:
    """Fields of a data set, and of what holds them; not those of a whole training."""
    streams = {"x": {"local": "m", "download_retry": 2}}
    dataset = {"streams": streams, "split": "train", "epoch_size": 5}
    found = recipe_from({"train_loader": {"dataset": dataset}, "model": {"name": "x"}})
    where = "$.train_loader.dataset"
    assert found.passed == (f"{where}.epoch_size", f"{where}.streams.x.download_retry")
    assert [stream.split for stream in found.train] == ["train"]  # of the dataset
    own = write_sets(tmp_path, {"a": 3})["a"]
    (tmp_path / "mix.json").write_text(json.dumps({"train": [{"path": own, "task": "asr"}]}))
    done = start(["mix", tmp_path / "mix.json", "--rows", "-o", tmp_path / "out"])
    assert done.returncode == 0, done.stderr
    assert "these fields are not used: $.train[0].task" in done.stderr


@pytest.mark.parametrize("share", [{"choose": 0}, {"repeat": 0}, {"proportion": 0}])
def test_a_validation_set_of_nothing(share: dict[str, Any], tmp_path: Path) -> None:
    """A validation set of nothing is left out; a part of one is that part."""
    sets = write_sets(tmp_path, {"a": 9, "b": 8})
    document = {"train": [{"path": sets["a"]}], "valid": [{"path": sets["b"], **share}]}
    assert "valid" not in run_mix(document, tmp_path / "out")["blend_per_split"]
    document["valid"] = [{"path": sets["b"], "repeat": 0.5}]
    (valid,) = run_mix(document, tmp_path / "half")["blend_per_split"]["valid"]
    assert valid["samples"] == 4
