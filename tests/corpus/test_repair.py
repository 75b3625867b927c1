"""A damaged index is made again, where the lengths say exactly what the .bin has."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.corpus import open_idx
from distcache.corpus.examine import examine
from distcache.corpus.repair import is_repairable, open_damaged
from distcache.corpus.soundness import Outline, _overflow, _seams
from distcache.errors import CorpusError, NotReady
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


@pytest.mark.parametrize(
    ("changes", "repaired"),
    [
        ({"offsets": [0, 6, 6 - 2**32, 16]}, "offsets that are not the running sum"),
        ({"offsets": [0, 6, 0, 10]}, "offsets that are not the running sum"),  # modulo 2**n
        ({"offsets": [0, 3, 3, 8]}, "offsets that are not the running sum"),  # of tokens
        ({"bounds": []}, "document boundaries: each sequence is a document now"),
        ({"bounds": [0]}, "document boundaries"),
        ({"bounds": [0, 1, 2]}, "document boundaries"),
        ({"bounds": [0, 3, 2, 4]}, "document boundaries"),
        ({"code": 4}, "token type code 4: the .bin has 2 bytes for each token"),
        ({"code": 99}, "token type code 99"),
    ],
)
def test_what_follows_from_lengths(changes: Any, repaired: str, tmp_path: Path) -> None:
    """`check` names it, and `convert --repair` writes the sound pair."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    truth = [Path(prefix + end).read_bytes() for end in (".idx", ".bin")]
    damage(prefix, **changes)
    checked = start(["check", prefix])
    assert checked.returncode == 3
    assert repaired in checked.stderr
    assert f"convert --repair {prefix}" in checked.stderr
    done = start(["convert", prefix, "--repair", "-o", tmp_path / "b"])
    assert done.returncode == 0, done.stderr
    assert [Path(f"{tmp_path}/b{end}").read_bytes() for end in (".idx", ".bin")] == truth


def test_a_tail_is_left_out(tmp_path: Path) -> None:
    """A tail is left out of a .bin whose index is right: nothing says what it is."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    truth = Path(f"{prefix}.bin").read_bytes()
    Path(f"{prefix}.bin").write_bytes(truth + b"tail!")
    assert is_repairable(prefix) == ("a tail of 5 bytes of the .bin, which no sequence has",)
    done = start(["convert", prefix, "--repair", "-o", tmp_path / "b"])
    assert done.returncode == 0, done.stderr
    assert Path(f"{tmp_path}/b.bin").read_bytes() == truth


def test_what_cannot_be_repaired(tmp_path: Path) -> None:
    """Tokens that are lost, negative lengths, no header, no file, a pointer of git-lfs."""
    prefix = write_lengths(tmp_path / "a", LENGTHS)
    content, tokens = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    Path(f"{prefix}.bin").write_bytes(tokens[:-1])
    with pytest.raises(CorpusError, match=r"9 tokens, and the \.bin has 17 bytes, which fit no"):
        open_damaged(prefix)
    Path(f"{prefix}.bin").write_bytes(tokens)
    for changed, problem in (
        (content[:34] + struct.pack("<i", -1) + content[38:], "has negative lengths"),
        (content[:40], "ends within the lengths of its 4 sequences"),
        (content[:20], "has no header of an index"),
        (LFS, "is a pointer of git-lfs, not the file: run `git lfs pull`"),
    ):
        Path(f"{prefix}.idx").write_bytes(changed)
        with pytest.raises(CorpusError, match=problem):
            open_damaged(prefix)
        assert is_repairable(prefix) == ()
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


@given(st.permutations(range(6)), st.integers(0, 6))
def test_a_permutation_is_a_view(order: list[int], split: int) -> None:
    """Of all sequences, each once, in a .bin of its own; in ranges of any size."""
    lengths = np.array([3, 0, 5, 1, 2, 0], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 2
    idx = SimpleNamespace(lengths=lengths[order], offsets=offsets[order], item_size=2)

    def seams_of(begin: int, end: int) -> int:
        return _seams(idx, begin, end, view=True)  # type: ignore[arg-type]

    head = Outline("a", bin_size=22, type_code=8)
    assert _overflow(head, 11, seams_of(0, split) + seams_of(split, 6)) == []
    plain = SimpleNamespace(lengths=lengths, offsets=offsets, item_size=2)
    for view in (False, True):
        assert _overflow(head, 11, _seams(plain, 0, 6, view=view)) == []  # type: ignore[arg-type]
    idx.offsets = np.where(idx.lengths == 5, idx.offsets - 2, idx.offsets)
    assert len(_overflow(head, 11, seams_of(0, 6))) == 1


def test_ranges_of_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their findings are sent, of a running sum and of a permutation."""
    monkeypatch.setattr("distcache.corpus.examine.RANGE", 8)
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
    with pytest.raises(CorpusError, match=r"a\.bin: is a pointer of git-lfs"):
        open_damaged(prefix)
    Path(f"{prefix}.bin").unlink()
    done = start(["convert", prefix, "-o", tmp_path / "b", "--repair"])
    assert done.returncode == 3
    assert f"{prefix}.bin: cannot be read: No such file" in done.stderr
