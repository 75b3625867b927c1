"""MaxText's own ``mmap_npy`` pipeline finds every file, builds nothing, and reads the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import distcache
from distcache.edit.select import SelectOptions, select
from distcache.edit.selection import Selection
from distcache.errors import ConfigError
from distcache.megatron.export import export, wrong_files
from distcache.megatron.names import Naming
from distcache.ranks.communicator import SerialCommunicator
from tests.frameworks.judges import import_bare, refuse
from tests.support.caches import build_here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.processes import start

BASE = "maxtext.input_pipeline"
source = import_bare(f"{BASE}._mmap_datasource", "maxtext")
utils = import_bare(f"{BASE}._mmap_index_utils", "maxtext")
blending = import_bare(f"{BASE}._megatron_blending", "maxtext")

NAMING = Naming(framework="maxtext")
TITLE = "# for MaxText 0.2.5:\n"


@pytest.fixture(autouse=True)
def _builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "build_indices", refuse)
    monkeypatch.setattr(blending, "build_blending_indices", refuse)


def configuration(kind: str, directory: Path) -> dict[str, Any]:
    """Return a configuration of a kind: epochs of one, of several, and of parts of one."""
    directory.mkdir(exist_ok=True)
    paths = [write_lengths(directory / n, LENGTHS[n]) for n in ("plain", "second", "third")]
    weighted = [{"path": path, "weight": w} for path, w in zip(paths, (3, 1, 2), strict=True)]
    fields: dict[str, Any] = {
        "sequence_length": 32,
        "seed": 7,
        "split": "97,2,1",
        "samples": {"train": 6001, "valid": 40, "test": 10},
    }
    match kind:
        case "blend":
            return fields | {"blend": weighted}
        case "one corpus":
            return fields | {"blend": paths[:1]}
        case "one epoch":
            return fields | {"blend": paths[2:], "samples": dict.fromkeys(fields["samples"])}
    del fields["split"]
    return fields | {"blend_per_split": {"train": weighted, "valid": weighted[1:]}}


def maxtexts(document: dict[str, Any], split: str, samples: int | None) -> Any:
    """Return what MaxText's pipeline reads by the YAML of an export, in its order."""
    train = split == "train"
    assert (document["dataset_type"], document["grain_file_type"]) == ("grain", "mmap_npy")
    return source.get_mmap_npy_dataset(
        document["grain_train_files" if train else "grain_eval_files"],
        split_sentences=False,
        seq_length=document["max_target_length"],
        eod_id=0,
        num_epoch=1,
        host_index=0,
        host_count=1,
        num_threads=1,
        prefetch_buffer_size=1,
        blend_cache_dir=None,
        blend_index_dir=document.get("blend_index_dir"),
        blend_split="train" if train else "eval",
        apply_transforms=lambda dataset, *_: dataset.to_iter_dataset(),
        num_samples=samples,
        seed=document["data_shuffle_seed"],
        split=document["mmap_npy_split"] or None,
        split_index=0 if train or not document["mmap_npy_split"] else 1,
    )


@pytest.mark.parametrize("kind", ["blend", "one corpus", "one epoch", "per split"])
@pytest.mark.parametrize("how", ["export", "localize"])
def test_maxtext_finds_all(kind: str, how: str, tmp_path: Path) -> None:
    """With the YAML as printed, it builds nothing, and samples are the cache's, in its order."""
    fields = configuration(kind, tmp_path / "data")
    cache = build_here(fields, tmp_path / "shared", "c").path
    to = "--out" if how == "export" else "--store"
    done = start([how, cache, to, tmp_path / "out", "--for", "maxtext"])
    assert done.returncode == 0, done.stderr
    document = yaml.safe_load(done.stdout.partition(TITLE)[2])
    ours = distcache.open(cache)
    for split in ("train", "valid"):
        asked, mine = fields["samples"][split], ours.numpy_dataset(split)
        count = 0
        for sample, index in zip(maxtexts(document, split, asked), range(700), strict=False):
            np.testing.assert_array_equal(mine[index]["tokens"], sample["text"][:-1])
            np.testing.assert_array_equal(mine[index]["labels"], sample["text"][1:])
            count += 1
        assert count in (700, asked, len(mine))


def test_blends_have_the_samples_that_are_asked_for(tmp_path: Path) -> None:
    """A blend's files are the beginning of the cache's arrays; damage is found and repaired."""
    cache = distcache.open(
        build_here(configuration("blend", tmp_path / "data"), tmp_path / "shared", "c").path
    ).cache
    made = export(cache, tmp_path / "out", naming=NAMING)
    path = next((tmp_path / "out").glob("*-BlendedDataset-train-dataset_index.npy"))
    assert len(np.load(path)) == 6001 < len(cache.read(cache.arrays("blends", 0)["dataset_index"]))
    assert not list(wrong_files(cache, tmp_path / "out", naming=NAMING))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert [str(path)] == [
        problem.partition(":")[0] for problem in wrong_files(cache, tmp_path / "out", naming=NAMING)
    ]
    assert export(cache, tmp_path / "out", naming=NAMING) == made
    assert not list(wrong_files(cache, tmp_path / "out", naming=NAMING))


def test_more_samples_are_not_found(tmp_path: Path) -> None:
    """Where training asks for more than the cache was built for, MaxText would build."""
    fields = configuration("blend", tmp_path / "data")
    cache = build_here(fields, tmp_path / "shared", "c").path
    done = start(["export", cache, "-o", tmp_path / "out", "--for", "maxtext"])
    assert "steps and the global batch size must ask for 6,001 samples in all" in done.stdout
    document = yaml.safe_load(done.stdout.partition(TITLE)[2])
    with pytest.raises(AssertionError, match="it builds"):
        maxtexts(document, "train", 60_000)


def refused(fields: dict[str, Any], tmp_path: Path) -> str:
    """Return why a cache of a configuration is refused."""
    cache = distcache.open(build_here(fields, tmp_path / "shared").path).cache
    with pytest.raises(ConfigError) as caught:
        export(cache, tmp_path / "out", naming=NAMING)
    assert not (tmp_path / "out").exists()
    return "\n".join(caught.value.problems)


def test_views_are_refused(tmp_path: Path) -> None:
    """MaxText counts the tokens of an epoch by the bytes of the whole `.bin`."""
    fields = configuration("one corpus", tmp_path / "data")
    view = str(tmp_path / "view")
    chosen = SelectOptions(Selection(sample=0.7))
    select(SerialCommunicator(), fields["blend"][0], view, chosen)
    text = refused(fields | {"blend": [view]}, tmp_path)
    assert f"has {view}, which is a view" in text
    assert "distcache materialize" in text


def test_documents_of_several_sequences_are_refused(tmp_path: Path) -> None:
    """MaxText indexes documents; with as many of none as of two, counts alone do not tell."""
    fields = configuration("one corpus", tmp_path / "data")
    idx = Path(fields["blend"][0] + ".idx")
    content = bytearray(idx.read_bytes())
    bounds = np.frombuffer(content, "<i8", 301, len(content) - 301 * 8).copy()
    bounds[7] += 1
    content[-301 * 8 :] = bounds.tobytes()
    idx.write_bytes(content)
    assert "documents of several sequences or of none" in refused(fields, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "97/2/1"}, "reads numbers with commas"),
        ({"order": "passes"}, "has the order passes"),
        ({"mid_level_dataset_surplus": 0.1}, "has mid_level_dataset_surplus: 0.1"),
        ({"samples": {"train": 50, "valid": None}, "weights": None}, "a blend without weights"),
    ],
)
def test_what_would_differ_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """What MaxText would read in another way has no names, and no file is written."""
    fields = configuration("blend", tmp_path / "data") | change
    if "weights" in change:
        del fields["weights"]
        fields["blend"] = [entry["path"] for entry in fields["blend"]]
    assert message in refused(fields, tmp_path)


def test_names_that_it_cuts_are_refused(tmp_path: Path) -> None:
    """A path with a character that separates corpora would be read as two."""
    fields = configuration("one corpus", tmp_path / "data,1")
    assert "whose name has one of ;|:," in refused(fields, tmp_path)


def test_blends_of_others_are_kept_apart(tmp_path: Path) -> None:
    """MaxText takes any blend that it finds: no directory has its files and those of others."""
    tokenizer = {"tokenizer": {"class": "X"}}
    fields = configuration("blend", tmp_path / "data") | tokenizer
    path = build_here(fields, tmp_path / "shared", "c").path
    cache = distcache.open(path).cache
    for first, second in ((NAMING, Naming()), (Naming(), NAMING)):
        out = tmp_path / f"out-{first.framework}"
        export(cache, out, naming=first)
        with pytest.raises(ConfigError, match=r"would not know which to take"):
            export(cache, out, naming=second)
    store = tmp_path / "store"
    for words in (["--megatron"], ["--for", "maxtext"]):
        done = start(["localize", path, "--store", store, *words])
        assert done.returncode == 0, done.stderr
    document = yaml.safe_load(done.stdout.partition(TITLE)[2])
    next(iter(maxtexts(document, "train", 6001)))
    assert start(["local", "verify", "--store", store]).returncode == 0


@pytest.mark.parametrize("name", ["o|u", "o;u", "o "])
def test_directories_that_it_cuts_are_refused(name: str, tmp_path: Path) -> None:
    """The directory is a part of MaxText's specification, too."""
    fields = configuration("one corpus", tmp_path / "data")
    cache = distcache.open(build_here(fields, tmp_path / "shared").path).cache
    with pytest.raises(ConfigError, match="cannot be given a directory"):
        export(cache, tmp_path / name, naming=NAMING)
