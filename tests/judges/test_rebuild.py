"""`verify --against-megatron` lets Megatron build what a cache has, and compares everything."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from distcache.cache import open_cache
from distcache.errors import CacheCorrupt, ConfigError
from distcache.launch.doctor.rebuild import rebuild_with_megatron, require_megatrons
from distcache.megatron.export import export
from tests.judges.matrix import configuration
from tests.judges.megatron import package_info
from tests.support import here
from tests.support.processes import start

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NUMBERS = range(24)  # of the matrix: each of its shapes three times
REFUSED = {2, 3, 8, 11, 12, 13, 15, 20}  # of them, by `build`


@pytest.mark.few(8)
@pytest.mark.parametrize("number", NUMBERS)
def test_all_is_equal(number: int, corpora: dict[str, str], tmp_path: Path) -> None:
    """As many files as an export has."""
    fields = configuration(number, corpora)
    try:
        path = here.build(fields, tmp_path / "shared").path
    except ConfigError:
        assert number in REFUSED
        return
    require_megatrons(open_cache(path))
    found = rebuild_with_megatron(path)
    assert found.release == package_info.__version__
    assert found.own_ranks == 1
    assert found.files == len(export(open_cache(path), tmp_path / "out").files)


def test_what_differs_is_named(corpora: dict[str, str], tmp_path: Path) -> None:
    """A corpus that was tokenized again gives other arrays."""
    plain = tmp_path / "plain"
    for end in (".bin", ".idx"):
        shutil.copy(corpora["plain"] + end, f"{plain}{end}")
    fields = {"sequence_length": 32, "samples": {"train": 50}, "split": "1,0,0"}
    path = here.build(fields | {"blend": [str(plain)]}, tmp_path / "shared").path
    for end in (".bin", ".idx"):
        shutil.copy(corpora["second"] + end, f"{plain}{end}")
    with pytest.raises(CacheCorrupt, match=r"builds \d+ other files: [0-9a-f]+-GPTDataset-train"):
        rebuild_with_megatron(path)
    shutil.copy(corpora["plain"] + ".idx", f"{plain}.idx")
    (tmp_path / "plain.bin").unlink()
    with pytest.raises(ConfigError, match="Megatron-Core cannot build it here"):
        rebuild_with_megatron(path)


def test_orders_that_megatron_does_not_have(corpora: dict[str, str], tmp_path: Path) -> None:
    """They are refused before anything is built."""
    fields = {"sequence_length": 32, "samples": {"train": 50}, "split": "1,0,0"}
    fields |= {"blend": [corpora["plain"]], "shuffle": "passes"}
    path = here.build(fields, tmp_path / "shared").path
    with pytest.raises(ConfigError, match="order: passes"):
        require_megatrons(open_cache(path))
    fields = {"sequence_length": 32, "multiple_validation_sets": True}
    sets = [{"path": corpora[name], "samples": 7} for name in ("plain", "second")]
    fields["blend_per_split"] = {"valid": sets}
    path = here.build(fields, tmp_path / "shared").path
    with pytest.raises(ConfigError, match="samples of one validation set"):
        require_megatrons(open_cache(path))


@pytest.mark.once
def test_the_command(corpora: dict[str, str], tmp_path: Path) -> None:
    """It shows both durations."""
    fields = {"sequence_length": 32, "samples": {"train": 50}, "split": "1,0,0"}
    path = here.build(fields | {"blend": [corpora["plain"]]}, tmp_path / "shared").path
    where = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # of the release that judges
    done = start(["verify", path, "--against-megatron"], environment=where)
    assert done.returncode == 0, done.stderr
    release = package_info.__version__
    assert f"Megatron-Core {release} on one rank " in done.stdout
    assert "distcache on 1 rank " in done.stdout
    assert done.stdout.endswith("all 4 files are equal\n")
    done = start(["verify", path, "--against-megatron", "--json"], environment=where)
    assert json.loads(done.stdout)["megatron"]["files"] == 4
