"""Rows of MDS shards: write a small set, and train from it with exact resuming.

demo_mds.py write DIR      two data sets for training and two for validation, and mix.yaml
demo_mds.py train CACHE    a toy model on what the cache holds, stopped and resumed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

import distcache

RATE = 800  # samples of a second
TONES = {"low": 50, "high": 200}


def write_shard(path: Path, samples: list[dict[str, bytes]]) -> dict[str, Any]:
    """Write a compressed shard of byte columns as mosaicml-streaming does; return its entry."""
    names = sorted(samples[0])
    columns = {
        "column_encodings": ["str" if name == "text" else "bytes" for name in names],
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": "zstd:3",
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }
    text = json.dumps(columns, sort_keys=True).encode()
    packed = [
        np.array([len(sample[name]) for name in names], "<u4").tobytes()
        + b"".join(sample[name] for name in names)
        for sample in samples
    ]
    begin = 4 * (len(samples) + 2) + len(text)
    offsets = np.cumsum([begin, *map(len, packed)]).astype("<u4")
    raw = np.uint32(len(samples)).tobytes() + offsets.tobytes() + text + b"".join(packed)
    zipped = zstandard.ZstdCompressor(level=3).compress(raw)
    path.with_name(path.name + ".zstd").write_bytes(zipped)
    files = {
        "raw_data": {"basename": path.name, "bytes": len(raw), "hashes": {}},
        "zip_data": {"basename": f"{path.name}.zstd", "bytes": len(zipped), "hashes": {}},
    }
    return {**columns, **files, "samples": len(samples)}


def write_set(directory: Path, tone: int, count: int) -> None:
    """Write tones of half a second, with a text of how high they are."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(tone)
    samples = []
    for _ in range(count):
        pitch = tone * random.uniform(0.8, 1.2)
        wave = np.sin(2 * np.pi * pitch * np.arange(RATE // 2) / RATE).astype("<f4")
        samples.append({"audio": wave.tobytes(), "text": f"{pitch:.1f}".encode()})
    shards = [
        write_shard(directory / f"shard.{number:05}.mds", samples[begin : begin + 64])
        for number, begin in enumerate(range(0, count, 64))
    ]
    (directory / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))


def write(directory: Path) -> None:
    """Write the data sets, and the list of them."""
    lines = ["train:"]
    for name, tone in TONES.items():
        write_set(directory / name, tone, 400)
        lines.append(f"  - {{name: {name}, path: {directory / name}, choose: {tone}}}")
    lines.append("valid:")
    for name, tone in TONES.items():
        write_set(directory / f"{name}-valid", tone + 1, 40)
        lines.append(f"  - {{name: {name}-valid, path: {directory / name}-valid}}")
    (directory / "mix.yaml").write_text("\n".join(lines) + "\n")


def features(row: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode a row: in a thread, or in a worker."""
    wave = torch.frombuffer(bytearray(row["audio"]), dtype=torch.float32)
    spectrum = torch.fft.rfft(wave).abs()
    return spectrum / spectrum.sum(), torch.tensor([float(row["text"]) / 100])


def stack(rows: list[Any]) -> list[torch.Tensor]:
    """Make a batch of rows."""
    return [torch.stack(part) for part in zip(*rows, strict=True)]


def train(path: str) -> None:
    """Train, stop, resume as another number of ranks, and show a loss of each validation set."""
    cache = distcache.open(path)
    print(cache)
    rows = cache.rows("train", map=features)
    torch.manual_seed(1)
    model = torch.nn.Linear(RATE // 4 + 1, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    batches = distcache.Batches(rows, 16, collate=stack)
    for step, (spectrum, pitch) in enumerate(batches, start=1):
        loss = torch.nn.functional.mse_loss(model(spectrum), pitch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 5:
            break
    state = batches.save_state()
    expected = [torch.cat(parts) for parts in zip(next(batches), next(batches), strict=True)]
    resumed = distcache.Batches(rows, 32, collate=stack)
    resumed.restore_state(state)
    assert all(map(torch.equal, next(resumed), expected)), "resuming is exact"
    print(f"step {step}: loss {loss.item():.4f}; resumed after {state['consumed_samples']} samples")
    for number, name in enumerate(f"{name}-valid" for name in TONES):
        valid = cache.rows("valid", number, map=features)
        spectrum, pitch = stack([valid[i] for i in range(len(valid))])
        loss = torch.nn.functional.mse_loss(model(spectrum), pitch)
        print(f"validation set {name}: {len(valid)} samples, loss {loss.item():.4f}")


if __name__ == "__main__":
    task, where = sys.argv[1:]
    write(Path(where)) if task == "write" else train(where)
