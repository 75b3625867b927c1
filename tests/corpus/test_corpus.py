"""Corpora are read without copying, and every fault of an unsound one is named."""

from __future__ import annotations

import os
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.corpus import open_idx
from distcache.corpus.idx import HEADER_SIZE
from distcache.errors import CorpusError, NotReady
from tests.plan.test_make import plan_of
from tests.support import here
from tests.support.corpora import LENGTHS, write_corpus, write_lengths

MUTATIONS = 10_000


def faults_of(*prefixes: str) -> list[str]:
    """Return what an examination says against corpora."""
    faults = here.faults(prefixes)
    return [fault.message for fault in faults]


def patch(path: str, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with open(path, "r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def test_arrays_are_views(corpora: dict[str, str]) -> None:
    """Nothing is copied; the header leaves every array unaligned."""
    idx = open_idx(corpora["plain"])
    assert not idx.lengths.flags.owndata
    assert not idx.lengths.flags.aligned
    np.testing.assert_array_equal(idx.lengths, LENGTHS["plain"])
    np.testing.assert_array_equal(idx.bounds, np.arange(len(LENGTHS["plain"]) + 1))


def test_facts_of_sound_corpora(corpora: dict[str, str]) -> None:
    """Sequences, tokens and empty sequences are counted, in the order asked."""
    facts = here.facts(list(corpora.values()), 2)
    assert list(facts) == list(corpora.values())
    for name, prefix in corpora.items():
        found = facts[prefix]
        assert found.sequences == len(LENGTHS[name])
        assert found.tokens == LENGTHS[name].sum()
        assert found.empty_sequences == (LENGTHS[name] == 0).sum()


def test_modes_of_multimodal_data_are_read(tmp_path: Path) -> None:
    """One byte per sequence follows the document boundaries."""
    prefix = write_lengths(tmp_path / "c", LENGTHS["tiny"])
    with open(f"{prefix}.idx", "ab") as stream:
        stream.write(bytes([0, 1, 0, 1, 1, 0, 2]))
    modes = open_idx(prefix).modes
    assert modes is not None
    assert modes.tolist() == [0, 1, 0, 1, 1, 0, 2]
    assert faults_of(prefix) == []


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda p: patch(p, 0, b"X"), "magic is"),
        (lambda p: patch(p, 0, b"TNTIDX\0\0"), "is a TNTIDX file"),
        (lambda p: patch(p, 9, struct.pack("<Q", 2)), "version is 2, expected 1"),
        (lambda p: patch(p, 17, b"\x09"), "token type code is 9"),
        (lambda p: patch(p, 18, struct.pack("<Q", 8)), "expected 194 (or 202 with modes)"),
        (lambda p: patch(p, 18, struct.pack("<Q", 2**63)), "sequences and 8 document entries"),
        (lambda p: patch(p, HEADER_SIZE + 4, struct.pack("<i", -5)), "1 lengths are negative"),
        (lambda p: patch(p, HEADER_SIZE + 28 + 8, struct.pack("<q", -3)), "nor within the .bin"),
        (lambda p: patch(p, HEADER_SIZE + 28 + 8, struct.pack("<q", 99)), "nor within the .bin"),
        (
            lambda p: patch(p, HEADER_SIZE + 84 + 24, struct.pack("<q", 0)),
            "document boundary 3 is 0",
        ),
        (lambda p: patch(p, HEADER_SIZE + 84, struct.pack("<q", 1)), "document boundary 0 is 1"),
        (
            lambda p: patch(p, HEADER_SIZE + 84 + 56, struct.pack("<q", 9)),
            "last document boundary is 9",
        ),
    ],
)
def test_faults_are_named(spoil: Callable[[str], None], expected: str, tmp_path: Path) -> None:
    """What was found and what was expected."""
    prefix = write_lengths(tmp_path / "c", LENGTHS["tiny"])
    spoil(f"{prefix}.idx")
    assert any(expected in message for message in faults_of(prefix))


def test_every_fault_of_every_corpus(tmp_path: Path, corpora: dict[str, str]) -> None:
    """One run reports all, and a sound corpus among them is no fault."""
    short = write_lengths(tmp_path / "short", LENGTHS["tiny"])
    patch(f"{short}.idx", HEADER_SIZE, struct.pack("<i", -1))
    with open(f"{short}.bin", "r+b") as stream:
        stream.truncate(3)
    with pytest.raises(CorpusError) as caught:
        here.facts([tmp_path / "none", corpora["plain"], short], 2)
    text = str(caught.value)
    assert f"{tmp_path / 'none'}.idx: no such file" in text
    assert f"{tmp_path / 'none'}.bin" in text
    assert "lengths are negative" in text
    assert corpora["plain"] not in text


def test_a_bin_of_another_length(tmp_path: Path) -> None:
    """Both lengths are in the message."""
    prefix = write_lengths(tmp_path / "c", LENGTHS["single"])
    with open(f"{prefix}.bin", "ab") as stream:
        stream.write(b"\0")
    assert faults_of(prefix) == ["has 1401 bytes, expected 1400 for 700 tokens"]


@pytest.mark.slow
def test_ten_thousand_mutated_files(tmp_path: Path) -> None:
    """Truncated or flipped anywhere: a fault, an equal result or a view; and never a crash."""
    choose = random.Random(2)
    prefix = write_lengths(tmp_path / "c", LENGTHS["hollow"])
    path = Path(f"{prefix}.idx")
    original = path.read_bytes()
    sound = here.sound(prefix)
    caught = 0
    for _ in range(MUTATIONS):
        mutated = bytearray(original)
        kind = choose.randrange(4)
        if kind == 0:
            del mutated[choose.randrange(len(mutated)) :]
        elif kind == 1:
            mutated += choose.randbytes(choose.randint(1, 40))
        else:
            for _ in range(kind):
                mutated[choose.randrange(len(mutated))] ^= 1 << choose.randrange(8)
        path.write_bytes(mutated)
        facts, faults = here.examine([prefix])
        caught += bool(faults)
        if not faults:
            found = facts[prefix]
            same = (found.tokens, found.sequences) == (sound.tokens, sound.sequences)
            assert same or found.view  # within the tokens, and said to be a view
            assert found.sequences == sound.sequences
            assert found.idx_digest != sound.idx_digest or bytes(mutated) == original
    # Document boundaries, and bytes treated as modes, may change without a fault.
    assert caught > MUTATIONS * 0.8


@given(documents=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=20), max_size=12))
def test_what_is_written_is_read(documents: list[list[int]], tmp_path: Path) -> None:
    """Every document's tokens come back, from a sound corpus."""
    prefix = str(tmp_path / "round")
    write_corpus(prefix, documents, np.int32)
    assert faults_of(prefix) == []
    idx = open_idx(prefix)
    tokens = np.fromfile(f"{prefix}.bin", np.int32)
    offsets = idx.offsets // 4
    read = [tokens[o : o + n].tolist() for o, n in zip(offsets, idx.lengths, strict=True)]
    assert read == documents


def test_a_missing_corpus_is_not_ready(tmp_path: Path) -> None:
    """The name of the file is in the message."""
    with pytest.raises(NotReady, match=r"none\.idx: no such file"):
        open_idx(str(tmp_path / "none"))


def test_a_pipe_is_no_corpus(tmp_path: Path) -> None:
    """A pipe is no corpus, and is not waited for."""
    os.mkfifo(tmp_path / "p.idx")
    (tmp_path / "p.bin").write_bytes(b"")
    assert "Not a regular file" in faults_of(str(tmp_path / "p"))[0]


def test_many_corpora_need_few_open_files(tmp_path: Path) -> None:
    """A blend may name more corpora than a process may have files open."""
    prefixes = [write_lengths(tmp_path / f"c{number}", LENGTHS["tiny"]) for number in range(90)]
    fields = {"sequence_length": 4, "split": "1", "blend": prefixes}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now_open = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (now_open + 40, hard))
    try:
        assert len(plan_of(fields).sources) == 90
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_directory_is_no_corpus(tmp_path: Path) -> None:
    """A directory is no corpus: one fault, and no traceback."""
    (tmp_path / "d.idx").mkdir()
    (tmp_path / "d.bin").mkdir()
    assert len(faults_of(str(tmp_path / "d"))) >= 1
