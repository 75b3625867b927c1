"""Read a cache with Grain, as MaxText does, and resume: python maxtext_grain.py CACHE."""

import json
import sys
from pathlib import Path

import grain

import distcache

CHECKPOINT = Path("grain.json")
BATCH, STEPS = 4, 5
HOST, HOSTS = 0, 1  # jax.process_index(), jax.process_count()

samples = distcache.open(sys.argv[1]).numpy_dataset("train", position=True)
batches = grain.MapDataset.source(samples)[HOST::HOSTS].batch(BATCH, drop_remainder=True)
iterator = iter(batches.to_iter_dataset())
if CHECKPOINT.exists():
    iterator.set_state(json.loads(CHECKPOINT.read_text()))
for step in range(STEPS):
    batch = next(iterator)
    inputs, targets = batch["tokens"], batch["labels"]  # of MaxText's names
    print(f"step {step}: samples {batch['position'].tolist()}, shape {inputs.shape}")
CHECKPOINT.write_text(json.dumps(iterator.get_state()))
