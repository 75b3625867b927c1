"""Build, verify and localize a cache with the installed package, in a new directory: DIRECTORY."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

import distcache
from distcache.corpus.idx_writer import write_idx
from distcache.kernels import instructions

directory = Path(sys.argv[1])
directory.mkdir()
lengths = np.arange(1, 200, dtype=np.int32)
(directory / "a.bin").write_bytes(bytes(2 * int(lengths.sum())))
write_idx(str(directory / "a"), lengths, "u2")
config = directory / "c.json"
config.write_text(
    json.dumps(
        {
            "sequence_length": 64,
            "split": "1",
            "samples": {"train": 100},
            "blend": [str(directory / "a")],
        }
    )
)
program = str(Path(sys.executable).parent / "distcache")
cache = directory / "c.h5"
command = ["--data-path", str(directory / "a"), "--split", "1", "--seq-length", "64", "--bf16"]
command += ["--train-samples", "100", "--global-batch-size", "1", "--eval-iters", "0"]
for words in (
    ["plan", *command],
    ["build", str(config), "-o", str(directory), "--name", "c"],
    ["verify", str(cache), "--corpora"],
    ["localize", str(cache), "--store", str(directory / "local")],
    ["slurm-scripts", str(directory / "jobs")],
):
    subprocess.run([program, *words], check=True, capture_output=True)
# An emulator shows the flags of its host.
if platform.machine() == "x86_64" and " avx2 " in Path("/proc/cpuinfo").read_text():
    assert instructions() != "baseline", "the compiler's runtime does not know the processor"
print(f"distcache {distcache.__version__} works in {sys.prefix}, with {instructions()}")
