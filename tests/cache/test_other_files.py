"""What is said of files instead of a cache: damaged ones, and those of another kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from distcache.cache import open_cache
from distcache.cache.contents import read_contents
from distcache.errors import CacheCorrupt, ConfigError
from tests.support.corpora import write_lengths
from tests.support.processes import start


def of_corpus(suffix: str) -> Callable[[Path], Path]:
    """Return what writes a file of a corpus."""

    def write(directory: Path) -> Path:
        return Path(f"{write_lengths(directory / 'c', np.full(9, 900))}.{suffix}")

    return write


def of_hdf5(directory: Path) -> Path:
    """Write a file of another program."""
    with h5py.File(directory / "other.h5", "w") as file:
        file["a"] = np.arange(10_000)
    return directory / "other.h5"


def text(directory: Path) -> Path:
    """Write a configuration."""
    (directory / "c.yaml").write_text("sequence_length: 8\n")
    return directory / "c.yaml"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (of_corpus("idx"), "looks like an index of Megatron"),
        (of_corpus("bin"), "looks like the tokens of a corpus"),
        (of_hdf5, "looks like an HDF5 file"),
        (text, "looks like a text"),
    ],
)
def test_another_file(make: Any, what: str, tmp_path: Path) -> None:
    """It is no cache, and not a damaged one: nobody is told to move it away."""
    path = make(tmp_path)
    for open_it in (open_cache, read_contents):
        with pytest.raises(ConfigError, match=what):
            open_it(path)
    assert start(["verify", path]).returncode == 2


def test_a_model_is_no_corpus(tmp_path: Path) -> None:
    """Whatever its name ends with."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(ConfigError, match="looks like a zip archive"):
        open_cache(tmp_path / "pytorch_model.bin")


def test_what_is_no_file() -> None:
    """A device is a wrong word, and no cache that may come."""
    with pytest.raises(ConfigError, match="/dev/null: cannot be opened: Not a regular file"):
        open_cache(Path("/dev/null"))


@pytest.mark.parametrize("damage", ["magic", "zeros", "short", "empty"])
def test_a_damaged_cache(damage: str, built: Path, tmp_path: Path) -> None:
    """It is corrupt, however little of its header is left."""
    path = tmp_path / "c.h5"
    shutil.copy(built, path)
    path.chmod(0o644)
    with open(path, "r+b") as stream:
        if damage == "magic":
            stream.write(b"x")
        elif damage == "zeros":
            stream.write(bytes(1 << 14))
        else:
            stream.truncate(9 if damage == "short" else 0)
    with pytest.raises(CacheCorrupt):
        open_cache(path)


def test_a_directory(built: Path, tmp_path: Path) -> None:
    """Its caches are named."""
    with pytest.raises(ConfigError, match="is a directory, and has no cache in it"):
        open_cache(tmp_path)
    shutil.copy(built, tmp_path / "one.h5")
    for open_it in (open_cache, read_contents):
        with pytest.raises(ConfigError, match=r"the caches in it are .*/one\.h5"):
            open_it(tmp_path)
