"""Documents that wait for their round, in memory and in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from distcache.ingest.document_buffer import DocumentBuffer, Memory, PieceFacts, Spool, digest_of


def test_pieces_that_wait_share_one_file(tmp_path: Path, limit: Callable[..., None]) -> None:
    """However many they are; each has its own documents, and the file is empty in the end."""
    limit("distcache.ingest.document_buffer", BLOCK_BYTES=8192)
    limit("distcache.ingest.document_buffer", SPOOL_BYTES=20_000)
    rng = np.random.default_rng(1)
    memory, spool = Memory(), Spool(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    expected, buffers = [], []
    for number in range(100):
        buffer = DocumentBuffer(np.dtype("<u2"), PieceFacts(""), memory, spool, 100 * number)
        parts = []
        for _ in range(number % 5):
            lengths = rng.integers(1, 4000, 4, dtype=np.int32)
            parts.append(rng.integers(0, 999, int(lengths.sum())).astype("<u2"))
            buffer.append(parts[-1], lengths, np.ones(len(lengths), np.int32))
        if number % 3:
            buffer.spill()
            assert buffer.held == 0
        expected.append(np.concatenate([np.empty(0, "<u2"), *parts]))
        buffers.append(buffer)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for buffer, tokens in zip(buffers, expected, strict=True):
        found = np.concatenate([np.empty(0, np.uint8), *buffer.blocks()])
        assert found.tobytes() == tokens.tobytes()
        assert digest_of(iter([found]), buffer.lengths, buffer.counts) == buffer.digest
        buffer.close()
    assert spool.size == 0
    spool.close()
    assert os.listdir(tmp_path) == []
