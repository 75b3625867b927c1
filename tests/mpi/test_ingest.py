"""Ranks of real MPI libraries make the same bytes of text, of token shards and of corpora."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.test_tokens import ROWS
from tests.support import texts
from tests.support.processes import LAUNCHERS, start

pytestmark = pytest.mark.mpi

# Cuts small inputs into many pieces, so that every rank has some.
PROGRAM = (sys.executable, "-m", "tests.faults.driver", "never", "0", "none", "--")
SUFFIXES = (".bin", ".idx", ".receipt.json")
KINDS = ("text in shards", "tokens")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, token shards and a tokenizer."""
    directory = tmp_path_factory.mktemp("inputs")
    documents = texts.documents(400)
    texts.train_bpe(directory / "tokenizer.json", documents)
    texts.write_jsonl(directory / "a.jsonl", documents)
    texts.write_jsonl(directory / "b.jsonl", documents[:3])
    for place in range(3):
        texts.write_shard(directory / f"{place}.parquet", ROWS[place * 50 :], groups=5)
    return directory


def words(kind: str, inputs: Path) -> list[Any]:
    """Return the command for a kind of input."""
    if kind.startswith("tokens"):
        found = ["ingest", "tokens", *sorted(inputs.glob("*.parquet")), "--vocab-size", 120]
        return [*found, "--shard-size", 2000] if "shards" in kind else found
    found = ["ingest", "text", inputs / "a.jsonl", inputs / "b.jsonl", "--tokenizer", inputs]
    found += ["--append-eod"]
    return [*found, "--shard-size", "50K"] if "shards" in kind else found


def made(directory: Path) -> dict[str, bytes]:
    """Return the content of every file, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_makes_the_same_bytes(kind: str, inputs: Path, tmp_path: Path) -> None:
    """Corpora and receipts, to the last byte, with both launchers."""
    command = words(kind, inputs)
    done = start([*command, "-o", tmp_path / "1/out"], program=PROGRAM)
    assert done.returncode == 0, done.stderr
    expected = made(tmp_path / "1")
    assert {Path(name).suffixes[-1] for name in expected} == {".bin", ".idx", ".json"}
    for ranks, launcher in ((3, "mpich"), (2, "openmpi")):
        directory = tmp_path / f"{launcher}{ranks}"
        done = start([*command, "-o", directory / "out"], ranks, launcher, program=PROGRAM)
        assert done.returncode == 0, done.stderr
        assert made(directory) == expected
    assert len(expected) == 3 or "shards" in kind


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_merge_and_check(launcher: str, inputs: Path, tmp_path: Path) -> None:
    """Shards merged by any number of ranks are the corpus that was not cut."""
    for kind, name in (("text", "whole"), ("text in shards", "cut")):
        done = start([*words(kind, inputs), "-o", tmp_path / name], 2, launcher, program=PROGRAM)
        assert done.returncode == 0, done.stderr
    shards = sorted(tmp_path.glob("cut-*.bin"))
    assert len(shards) > 2
    for ranks in (1, 3):
        out = tmp_path / f"merged{ranks}"
        done = start(["merge", *shards, "-o", out], ranks, launcher)
        assert done.returncode == 0, done.stderr
        for suffix in (".bin", ".idx"):
            assert Path(f"{out}{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    command = ["check", *shards, tmp_path / "merged3", "--tokens", "--readback", 5]
    done = start([*command, "--json"], 3, launcher)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["corpora"]) == len(shards) + 1


def test_every_rank_has_the_same_error(inputs: Path, tmp_path: Path) -> None:
    """It is said once, whichever rank has found it, and it is the first one of the input."""
    lines = (inputs / "a.jsonl").read_text().splitlines(keepends=True)
    lines[150], lines[390] = '{"text": 1}\n', "nonsense\n"
    (tmp_path / "in.jsonl").write_text("".join(lines))
    for ranks in (1, 2, 3):
        command = ["ingest", "text", tmp_path / "in.jsonl", "--tokenizer", inputs]
        done = start([*command, "-o", tmp_path / "out"], ranks, program=PROGRAM)
        assert done.returncode == 3
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("distcache:")]
        assert line.startswith(f"distcache: {tmp_path}/in.jsonl: line 151, byte ")
    assert not list(tmp_path.glob("out*"))
