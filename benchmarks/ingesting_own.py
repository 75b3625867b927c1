"""Run by `ingesting.py` in processes of their own: distcache, and the peak memory of each process.

    ingesting_own.py DIRECTORY WORDS...        # `distcache WORDS`
    ingesting_own.py DIRECTORY idx DOCUMENTS PREFIX

Each process leaves its peak memory in bytes, and its seconds without imports, in the directory.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from pathlib import Path

import numpy as np

NOTES = Path(sys.argv[1])


def leave() -> None:
    """Write the peak memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    (NOTES / f"memory.{os.getpid()}").write_text(str(peak), encoding="ascii")


def note_seconds(begin: float) -> None:
    """Write the seconds since the beginning."""
    seconds = time.perf_counter() - begin
    (NOTES / f"seconds.{os.getpid()}").write_text(str(seconds), encoding="ascii")


def write_index(documents: int, prefix: str) -> None:
    """Write an `.idx` from the lengths, as ranks have them."""
    from distcache.corpus import write_idx  # noqa: PLC0415

    lengths = np.random.default_rng(0).integers(1, 2000, documents).astype(np.int32)
    begin = time.perf_counter()
    write_idx(prefix, lengths, "u2")
    note_seconds(begin)


atexit.register(leave)
if sys.argv[2] == "idx":
    write_index(int(sys.argv[3]), sys.argv[4])
else:
    from distcache.cli.main import main

    # What a peer's time is without, either: the libraries are there when the clock begins.
    ours = ("distcache.ingest.pipeline", "distcache.ingest.tokenizers.huggingface")
    for module in (*ours, "mpi4py.MPI"):
        if module != "mpi4py.MPI" or "PMI_SIZE" in os.environ:
            importlib.import_module(module)
    sys.argv = ["distcache", *sys.argv[2:]]
    begin = time.perf_counter()
    atexit.register(note_seconds, begin)
    main()
