"""Reading samples, against a slow truth that cuts the tokens of all documents in a row."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distcache.kernels import Mapping, SampleRules, Section, read_samples

PAD, END = 3, 0
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class Example:
    """A corpus in a file, a shuffled document index over it, and samples cut anywhere."""

    def __init__(self, seed: int, code: int, extra: bool, wide: bool) -> None:
        random = np.random.default_rng(seed)
        self.code, self.extra = code, extra
        self.lengths = random.integers(0, 9, 12).astype("<i4")
        dtype = np.dtype(TYPES[code])
        self.tokens = random.integers(0, 9, int(self.lengths.sum()) + 1).astype(dtype)
        self.offsets = (np.cumsum(self.lengths) - self.lengths).astype("<i8")
        self.documents = random.permutation(12).astype("i4")
        ends = np.cumsum(self.lengths[self.documents])
        total = int(ends[-1])
        cuts = np.sort(random.integers(0, max(total - 1, 0) + 1, 7))
        positions = np.searchsorted(ends, cuts, side="right").clip(max=11)
        starts = ends - self.lengths[self.documents]
        self.cuts = cuts
        self.samples = np.stack([positions, cuts - starts[positions]], 1).astype(
            "i8" if wide else "i4"
        )
        self.shuffle = random.permutation(6).astype("i8" if wide else "u4")
        self.length = int(np.diff(cuts).max()) + 2
        row = [self.tokens[o : o + n] for o, n in zip(self.offsets, self.lengths, strict=True)]
        self.row = np.concatenate([row[document] for document in self.documents] or [self.tokens])

    def section(self) -> Section:
        """Return what the kernel takes."""
        arrays = (self.documents, self.samples, self.shuffle, self.lengths)
        byte_offsets = self.offsets * self.tokens.dtype.itemsize
        return Section(*arrays, byte_offsets, self.code, self.extra)

    def truth(self, sample: int) -> dict[str, Any]:
        """Return a sample's arrays, token by token."""
        place = int(self.shuffle[sample])
        begin, end = int(self.cuts[place]), int(self.cuts[place + 1]) + self.extra
        text = self.row[begin:end].astype(np.int64).tolist()
        wanted = self.length + self.extra
        text += [PAD] * (wanted - len(text))
        tokens = text[: self.length]
        labels = [*text[1:], PAD][: self.length]
        positions, position = [], 0
        for token in tokens:
            positions.append(position)
            position = 0 if token == END else position + 1
        return {
            "tokens": [0 if token == PAD else token for token in tokens],
            "labels": [0 if label == PAD else label for label in labels],
            "loss_mask": [
                float(label != PAD and token != END)
                for token, label in zip(tokens, labels, strict=True)
            ],
            "positions": positions,
            "ends": [int(token == END) for token in tokens],
        }


def new_arrays(rows: int, length: int) -> dict[str, Any]:
    """Return arrays with nonsense in them."""
    kinds = {"tokens": "i8", "labels": "i8", "loss_mask": "f4", "positions": "i8", "ends": "u1"}
    return {name: np.full((rows, length), 77, kind) for name, kind in kinds.items()}


@given(
    seed=st.integers(0, 2**32),
    code=st.sampled_from(sorted(TYPES)),
    extra=st.booleans(),
    wide=st.booleans(),
)
def test_samples_are_the_tokens_between_two_cuts(
    seed: int, code: int, extra: bool, wide: bool
) -> None:
    """With every type of token and both widths of indices, into rows from any on."""
    example = Example(seed, code, extra, wide)
    assume(len(example.row) > 0)
    arrays = new_arrays(7, example.length)
    section, rules = example.section(), SampleRules(PAD, END, True, True)
    with tempfile.TemporaryFile() as stream:
        stream.write(example.tokens.tobytes())
        stream.flush()
        descriptors = np.full(6, stream.fileno(), np.int32)
        samples = np.arange(6)
        done = read_samples([section] * 6, samples, descriptors, np.arange(7), 1, rules, **arrays)
    assert done == (6, 0, 0, 0)
    for sample in range(6):
        for name, expected in example.truth(sample).items():
            assert arrays[name][sample + 1].tolist() == expected, name
    assert (arrays["tokens"][0] == 77).all()


def test_arrays_of_other_types_are_refused() -> None:
    """Nothing is converted, and every row must fit."""
    example = Example(1, 8, True, False)
    section, rules = example.section(), SampleRules(PAD, END, False, False)
    arrays = new_arrays(2, example.length)
    one = np.zeros(1, np.int64), np.zeros(1, np.int32), np.arange(2)
    with pytest.raises(TypeError, match="tokens must have dtype int64"):
        read_samples([section], *one, 0, rules, **{**arrays, "tokens": arrays["ends"]})
    with pytest.raises(ValueError, match="fit the rows"):
        read_samples([section], *one, 2, rules, **arrays)
    with pytest.raises(ValueError, match="a row per sample"):
        read_samples([section], *one, 0, rules, **{**arrays, "labels": arrays["labels"][:1]})
    with pytest.raises(ValueError, match="must fit the samples"):
        read_samples([section], *one[:2], np.arange(3), 0, rules, **arrays)
    with pytest.raises(ValueError, match="type_code"):
        Section(
            *[np.zeros(1, "i4"), np.zeros((2, 2), "i4"), np.zeros(1, "u4")],
            example.lengths,
            example.offsets,
            6,
            True,
        )


def test_a_mapping_is_the_file_without_its_descriptor() -> None:
    """A mapping is the file without its descriptor, and lives as long as anything looks at it."""
    with tempfile.TemporaryFile() as stream:
        stream.write(b"0123456789" * 1000)
        stream.flush()
        before = len(os.listdir("/proc/self/fd"))
        view = np.frombuffer(memoryview(Mapping(stream.fileno(), 10_000)), np.uint8)
        assert len(os.listdir("/proc/self/fd")) == before
    assert view[::10].tolist() == [ord("0")] * 1000
    assert not view.flags.writeable
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping(-1, 10)
    assert len(Mapping(-1, 0)) == 0
