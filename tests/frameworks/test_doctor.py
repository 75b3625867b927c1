"""`distcache doctor --for` asks the framework which files its training would look for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import distcache
from distcache.errors import ConfigError
from distcache.launch.doctor.frameworks import examine_framework
from distcache.megatron.export import export
from distcache.megatron.names import FrameworkName, Naming
from tests.frameworks import test_automodel, test_maxtext, test_mindspeed
from tests.support.caches import build_here
from tests.support.processes import start

KINDS = {"automodel": test_automodel, "maxtext": test_maxtext, "mindspeed": test_mindspeed}


def exported(name: FrameworkName, kind: str, tmp_path: Path) -> tuple[Path, list[str]]:
    """Return a directory of files for a framework, and its settings."""
    directory = tmp_path / "data"
    if name == "automodel":
        directory.mkdir()
    fields = KINDS[name].configuration(kind, directory)
    cache = distcache.open(build_here(fields, tmp_path / "shared", "c").path).cache
    made = export(cache, tmp_path / "out", naming=Naming(framework=name))
    return tmp_path / "out", made.arguments


def problems(name: FrameworkName, directory: Path, words: list[str]) -> list[str]:
    """Return what a framework would not find."""
    findings, _ = examine_framework(name, directory, words)
    return [finding.text for finding in findings if finding.level == "problem"]


@pytest.mark.parametrize("kind", ["blend", "one corpus", "per split"])
@pytest.mark.parametrize("name", ["automodel", "maxtext"])
def test_all_is_found(name: FrameworkName, kind: str, tmp_path: Path) -> None:
    """By the settings as printed, in the directory or in a file, nothing is missing."""
    directory, lines = exported(name, kind, tmp_path)
    file = tmp_path / "training.yaml"
    file.write_text("\n".join(lines))
    before = sorted(path.name for path in directory.iterdir())
    for words in ([], [str(file)]):
        findings, files = examine_framework(name, directory, words)
        assert [f.text for f in findings if f.level == "problem"] == []
        assert files
        assert all(file.there for file in files)
    assert sorted(path.name for path in directory.iterdir()) == before


def test_mindspeed_by_its_command(tmp_path: Path) -> None:
    """Its Megatron-Core finds all by the options as printed, and nothing by another seed."""
    directory, lines = exported("mindspeed", "blend", tmp_path)
    evaluations = "--global-batch-size 10 --eval-iters 1 --eval-interval 300"
    words = shlex.split(" ".join([*lines, evaluations]))
    assert problems("mindspeed", directory, words) == []
    found = problems("mindspeed", directory, [*words, "--seed", "8"])
    assert any("random_seed is 8 in training, 7 here" in text for text in found)
    with pytest.raises(ConfigError, match="give the training command"):
        examine_framework("mindspeed", directory, [])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("automodel", {"seed": 8}, "random_seed is 8 in training, 7 here"),
        ("automodel", {"tokenizer": {"pretrained_model_name_or_path": "b"}}, "tokenizer is 'b'"),
        ("maxtext", {"data_shuffle_seed": 8}, "seed is 8 in training, 7 here"),
        ("maxtext", {"max_target_length": 33}, "sequence_length is 33 in training, 32 here"),
    ],
)
def test_what_differs_is_named(
    name: FrameworkName, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """For what training would build, the field of the names that differs is said."""
    directory, lines = exported(name, "blend", tmp_path)
    document = yaml.safe_load("\n".join(lines))
    for part in [document["dataset"]] if name == "automodel" else [document]:
        part.update(change)
    file = tmp_path / "training.yaml"
    file.write_text(yaml.safe_dump(document))
    assert any(said in text for text in problems(name, directory, [str(file)]))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("automodel", {"dataset": {"index_mapping_dir": "/b"}}, "index_mapping_dir is '/b'"),
        ("automodel", {"dataset": {"_target_": "a.Mock"}}, "has no dataset of Megatron's files"),
        ("automodel", {"step_scheduler": "x"}, "step_scheduler: expected fields, not 'x'"),
        ("automodel", {"dataset": None}, "has no dataset of Megatron's files"),
        ("maxtext", {"dataset_type": "tfds"}, "dataset_type is 'tfds'"),
        ("maxtext", {"grain_file_type": "arrayrecord"}, "grain_file_type is 'arrayrecord'"),
        ("maxtext", {"grain_train_files": ""}, "lacks grain_train_files"),
    ],
)
def test_what_reads_other_files(
    name: FrameworkName, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """A configuration that would not read these files is refused, and the field is said."""
    directory, lines = exported(name, "blend", tmp_path)
    document = yaml.safe_load("\n".join(lines))
    document.pop("validation_dataset", None)
    for field, value in change.items():
        document[field] = document[field] | value if isinstance(value, dict) else value
    file = tmp_path / "training.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=said):
        examine_framework(name, directory, [str(file)])


def test_missing_files_and_directories(tmp_path: Path) -> None:
    """A file that is gone is a problem; a directory of another framework is refused."""
    directory, _ = exported("maxtext", "blend", tmp_path)
    next(directory.glob("*-BlendedDataset-train-dataset_index.npy")).unlink()
    found = problems("maxtext", directory, [])
    assert len(found) == 1
    assert "BlendedDataset-train" in found[0]
    assert "its files are missing or cut short, and its description fits" in found[0]
    with pytest.raises(ConfigError, match="has no files for NeMo Automodel"):
        examine_framework("automodel", directory, [])
    file = tmp_path / "wrong.yaml"
    file.write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected the YAML file"):
        examine_framework("maxtext", directory, [str(file)])


def test_where_the_framework_is_not(tmp_path: Path) -> None:
    """The command says so, and what to do, with the exit code of what is not ready."""
    directory, _ = exported("maxtext", "one corpus", tmp_path)
    done = start(["doctor", directory, "--for", "maxtext"])
    assert done.returncode == 5
    assert "run this where training runs" in done.stdout
