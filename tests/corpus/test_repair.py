"""Offsets that overflowed are made again, where the lengths say exactly what the .bin has."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.corpus import open_idx
from distcache.corpus.examine import examine
from distcache.corpus.repair import is_repairable, open_damaged
from distcache.errors import CorpusError, NotReady
from tests.edit.test_copy_corpora import write_multimodal
from tests.support.corpora import write_lengths
from tests.support.processes import start
from tests.support.threads import ThreadCommunicator, run_ranks

LENGTHS = np.array([3, 0, 5, 1])
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def damage(prefix: str, **changes: Any) -> None:
    """Write the index of a corpus again, with other arrays or another type code."""
    idx = open_idx(prefix)
    offsets = changes.get("offsets", np.array(idx.offsets))
    bounds = np.asarray(changes.get("bounds", np.array(idx.bounds)), np.int64)
    code = changes.get("code", idx.type_code)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(idx.lengths), len(bounds))
    content = head + idx.lengths.tobytes() + np.asarray(offsets, np.int64).tobytes()
    Path(f"{prefix}.idx").write_bytes(content + bounds.tobytes())


def test_offsets_that_overflowed(tmp_path: Path) -> None:
    """`check` names them, and `convert --repair` writes the sound pair."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    truth = [Path(prefix + end).read_bytes() for end in (".idx", ".bin")]
    damage(prefix, offsets=[0, 6, 6 - 2**32, 16])
    checked = start(["check", prefix])
    assert checked.returncode == 3
    assert f"convert --repair {prefix}" in checked.stderr
    done = start(["convert", prefix, "--repair", "-o", tmp_path / "b"])
    assert done.returncode == 0, done.stderr
    assert "1 offset made again" in done.stderr
    assert [Path(f"{tmp_path}/b{end}").read_bytes() for end in (".idx", ".bin")] == truth
    sound = start(["convert", tmp_path / "b", "--repair", "-o", tmp_path / "c"])
    assert sound.returncode == 2
    assert "nothing is wrong with it" in sound.stderr


def test_modes_stay(tmp_path: Path) -> None:
    """A repaired multimodal corpus has its modes."""
    prefix = write_multimodal(tmp_path / "a", LENGTHS)
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    begin = 34 + 4 * len(LENGTHS) + 8 * 3  # the last offset
    content[begin : begin + 8] = struct.pack("<q", 16 - 2**32)
    modes = np.array(open_idx(prefix).modes)
    Path(f"{prefix}.idx").write_bytes(content)
    found = open_damaged(prefix)
    assert found.wrong == 1
    assert np.array_equal(found.source.modes, modes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"offsets": [0, 3, 3, 8]}, "did not overflow"),  # they count tokens
        ({"offsets": [0, 6, 0, 10]}, "did not overflow"),
        ({"bounds": [0, 1, 2]}, "document boundaries are wrong"),
        ({"bounds": [0, 3, 2, 4]}, "document boundaries are wrong"),
        ({"code": 4}, "36 bytes, and the .bin has 18"),
        ({"code": 99}, "token type code is 99"),
    ],
)
def test_what_else_is_wrong_is_not_repaired(changes: Any, problem: str, tmp_path: Path) -> None:
    """Nothing says what is right then; `check` still refuses it."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    damage(prefix, **changes)
    assert start(["check", prefix]).returncode == 3
    with pytest.raises(CorpusError, match=problem):
        open_damaged(prefix)
    assert not is_repairable(prefix)


def test_the_tokens_of_a_view_are_not_its_own(tmp_path: Path) -> None:
    """Its offsets are free, and no running sum."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    (tmp_path / "v.bin").symlink_to(f"{prefix}.bin")
    (tmp_path / "v.idx").write_bytes(Path(f"{prefix}.idx").read_bytes())
    with pytest.raises(CorpusError, match="is a link: the corpus is a view"):
        open_damaged(str(tmp_path / "v"))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """Negative lengths, no header, no file, a pointer of git-lfs."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    content = Path(f"{prefix}.idx").read_bytes()
    for changed, problem in (
        (content[:34] + struct.pack("<i", -1) + content[38:], "has negative lengths"),
        (content[:40], "expected"),
        (content[:20], "fewer than the 34 of a header"),
        (LFS, "is a pointer of git-lfs, not the file: run `git lfs pull`"),
    ):
        Path(f"{prefix}.idx").write_bytes(changed)
        with pytest.raises(CorpusError, match=problem):
            open_damaged(prefix)
        assert not is_repairable(prefix)
    Path(f"{prefix}.idx").unlink()
    with pytest.raises(NotReady, match="no such file"):
        open_damaged(prefix)


def test_a_pointer_of_git_lfs_is_called_that(tmp_path: Path) -> None:
    """A pointer of git lfs is called that, whichever of both files it is."""
    for end in (".idx", ".bin"):
        prefix = write_lengths(tmp_path / end[1:], LENGTHS)
        Path(prefix + end).write_bytes(LFS)
        done = start(["check", prefix])
        assert done.returncode == 3
        assert "pointer of git-lfs" in " ".join((done.stdout + done.stderr).split())


@given(st.binary(max_size=200))
def test_no_file_is_trusted(content: bytes) -> None:
    """No file is trusted: whatever an index holds, the answer is a repair or an error."""
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as name:
        prefix = write_lengths(Path(name) / "a", LENGTHS)
        head = Path(f"{prefix}.idx").read_bytes()[:9]
        Path(f"{prefix}.idx").write_bytes(head + content)
        is_repairable(prefix)


def test_ranges_of_several_ranks(tmp_path: Path, limit: Callable[..., None]) -> None:
    """Their findings are sent, of a running sum and of a permutation, whose .bin is a link."""
    limit("distcache.corpus.examine", TASK_SEQUENCES=8)
    lengths = np.arange(400) % 7
    plain, moved = (write_lengths(tmp_path / name, lengths) for name in ("plain", "moved"))
    order = np.random.default_rng(1).permutation(400)
    idx = open_idx(moved)
    offsets = np.array(idx.offsets)[order]
    content = bytearray(Path(f"{moved}.idx").read_bytes())
    content[34 : 34 + 1600] = np.array(idx.lengths)[order].tobytes()
    content[1634 : 1634 + 3200] = offsets.tobytes()
    Path(f"{moved}.idx").unlink()
    Path(f"{moved}.idx").write_bytes(content)
    own = tmp_path / "own.bin"
    Path(f"{moved}.bin").rename(own)
    Path(f"{moved}.bin").symlink_to(own)

    def work(world: ThreadCommunicator) -> list[str]:
        facts, faults = examine(world, [plain, moved], 1)
        assert [found.view for found in facts.values()] == [False, True]
        return list(map(str, faults))

    outcomes, aborted = run_ranks(3, work)
    assert (outcomes, aborted) == ([[]] * 3, [])


def test_a_pointer_in_the_place_of_tokens(tmp_path: Path) -> None:
    """It is named by `convert --repair` too, as is what is not there."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    Path(f"{prefix}.bin").write_bytes(LFS)
    with pytest.raises(CorpusError, match=r"the \.bin has 64"):
        open_damaged(prefix)
    Path(f"{prefix}.bin").unlink()
    done = start(["convert", prefix, "-o", tmp_path / "b", "--repair"])
    assert done.returncode == 5
    assert f"{prefix}.bin: no such file" in done.stderr
