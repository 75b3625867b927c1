"""Reads are tried again, and files are opened once, as far as the limit allows it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache import kernels
from distcache.errors import CorpusError
from distcache.storage.timeouts import MAX_ATTEMPTS, pause_before
from distcache.train import reading, token_files
from distcache.train.token_files import TokenFiles
from tests.support import here
from tests.support.corpora import write_corpus
from tests.support.processes import clean_environment
from tests.train.test_dataset import as_lists

# As many as sites give, or as this machine lets its root have.
HIGH = min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


class Flaky:
    """The kernel, which fails at times as a network filesystem does."""

    def __init__(self, errors: list[int]) -> None:
        self.errors = errors
        self.calls = 0

    def __call__(
        self, sections: Any, samples: Any, files: Any, begins: Any, *rest: Any, **more: Any
    ) -> Any:
        """Read half of the samples, and fail."""
        self.calls += 1
        if not self.errors:
            return kernels.read_samples(sections, samples, files, begins, *rest, **more)
        half = len(samples) // 2
        begins = begins[: half + 1]
        done = kernels.read_samples(
            sections[:half], samples[:half], files[: begins[-1]], begins, *rest, **more
        )
        return done[0], self.errors.pop(0), 4096, 0


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited."""
    waited: list[float] = []
    monkeypatch.setattr(token_files.time, "sleep", waited.append)
    return waited


def test_errors_that_pass_are_outlived(
    cache: Path, monkeypatch: pytest.MonkeyPatch, no_pauses: list[float]
) -> None:
    """The samples that were read stay, the file is reopened, and pauses grow."""
    dataset = distcache.open(cache).dataset("train")
    expected = [as_lists(dict(row)) for row in dataset.__getitems__(list(range(16)))]
    flaky = Flaky([errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EIO, errno.EIO, errno.EIO])
    monkeypatch.setattr(reading, "read_samples", flaky)
    assert [as_lists(dict(row)) for row in dataset.__getitems__(list(range(16)))] == expected
    assert flaky.calls == 7
    assert len(no_pauses) == 6
    assert max(no_pauses) > 2 * min(no_pauses)


@pytest.mark.parametrize(("error", "calls"), [(errno.EIO, MAX_ATTEMPTS), (errno.EACCES, 1)])
def test_errors_that_stay_are_raised(
    cache: Path, monkeypatch: pytest.MonkeyPatch, no_pauses: list[float], error: int, calls: int
) -> None:
    """With the file and the byte, after a bounded number of attempts."""
    dataset = distcache.open(cache).dataset("train")
    flaky = Flaky([error] * 99)
    monkeypatch.setattr(reading, "read_samples", flaky)
    with pytest.raises(OSError, match="at byte 4096") as caught:
        dataset[0]
    assert caught.value.filename.endswith(".bin")
    assert flaky.calls == calls


def test_pauses_are_jittered() -> None:
    """So that not all processes try again at once."""
    assert len({pause_before(3) for _ in range(20)}) == 20
    assert sum(pause_before(attempt) for attempt in range(1, MAX_ATTEMPTS)) < 15


def open_files() -> int:
    """Count this process's descriptors."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache over 800 corpora."""
    directory = tmp_path_factory.mktemp("many")
    random = np.random.default_rng(1)
    blend = []
    for number in range(800):
        prefix = str(directory / f"corpus-{number}")
        documents = [random.integers(0, 999, 200).astype("u2") for _ in range(4)]
        write_corpus(prefix, documents, "u2")
        blend.append({"path": prefix, "weight": float(random.lognormal())})
    fields = {
        "sequence_length": 16,
        "split": "1,0,0",
        "samples": {"train": 20_000},
        "blend": blend,
        "mid_level_dataset_surplus": 0.5,
        "tokenizer": {},
    }
    return Path(here.build(fields, directory, "many").path)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8, 500])
def test_many_files_are_opened_once(many: Path, batch: int, opened: list[str]) -> None:
    """Each when it is first read, where the limit of descriptors allows it."""
    dataset = distcache.open(many).dataset("train")
    random = np.random.default_rng(2)
    seen = set()
    for _ in range(6000 // batch):
        rows = dataset.__getitems__(random.integers(0, len(dataset), batch).tolist())
        seen |= {int(row["dataset_id"]) for row in rows}
    assert len(seen) > 500
    read = [path for path in opened if path.endswith(".bin")]
    assert len(read) == len(set(read)) == len(seen)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(("limit", "most"), [(64, 56), (256, 200), (1024, 900), (HIGH, 800)])
def test_limits_of_descriptors(many: Path, limit: int, most: int) -> None:
    """The soft limit is raised to the hard one, a reserve is kept, and all samples are read."""
    code = f"""
import os, resource, sys
import numpy as np
import distcache
resource.setrlimit(resource.RLIMIT_NOFILE, (min({limit}, 128), {limit}))
dataset = distcache.open({str(many)!r}).dataset("train")
before = len(os.listdir("/proc/self/fd"))
random = np.random.default_rng(2)
for _ in range(500):
    dataset.__getitems__(random.integers(0, len(dataset), 16).tolist())
print(len(os.listdir("/proc/self/fd")) - before, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    count, soft = map(int, done.stdout.split())
    assert soft == limit
    assert 56 <= count <= most
    assert count > 100 or limit < 256


def test_the_pool_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    """And, over all readers of a process, never more than it may."""
    for number in range(9):
        (tmp_path / str(number)).write_bytes(bytes(number))
    limit("distcache.train.token_files", FILES_PER_READER=2)
    monkeypatch.setattr(token_files, "_opened", token_files._Count())
    files, others = TokenFiles(budget=4), TokenFiles(budget=4)
    before = open_files()
    others.descriptors([(str(tmp_path / "8"), 8)])
    for number in [0, 1, 2, 0, 3, 0, 4, 0, 5]:
        files.descriptors([(str(tmp_path / str(number)), number)])
        assert open_files() - before <= 4
    assert len(files.descriptors([(str(tmp_path / str(n)), n) for n in (6, 7, 8, 6)])) == 4
    assert open_files() - before == 4
    files.close()
    others.close()
    assert open_files() == before


def test_a_later_part_of_a_sample_that_cannot_be_read(tmp_path: Path) -> None:
    """It is an error with the path of the one `.bin`, whichever part of the sample it was."""
    documents = [np.arange(20) for _ in range(200)]
    prefix = str(tmp_path / "c")
    write_corpus(prefix, documents, "i4")
    fields = {"sequence_length": 64, "seed": 1, "samples": {"train": 50, "valid": 0, "test": 0}}
    built = here.build(fields | {"split": "1", "blend": [prefix]}, tmp_path / "caches")
    dataset = distcache.open(built.path).dataset("train")
    assert len(dataset[0]["tokens"]) == 64
    os.truncate(f"{prefix}.bin", 100)
    with pytest.raises(CorpusError, match=r"c\.bin: ends before byte"):
        dataset.__getitems__(list(range(40)))
