"""Train from a cache with Accelerate: accelerate launch accelerate_loop.py CACHE."""

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import distcache

VOCABULARY, BATCH, STEPS = 30_000, 4, 5

accelerator = Accelerator(cpu=not torch.cuda.is_available())
dataset = distcache.open(sys.argv[1]).dataset("train")
# The sampler deals batches to ranks, so the loader is not given to prepare(), which would again.
sampler = distcache.ResumableSampler(
    dataset, BATCH, accelerator.process_index, accelerator.num_processes
)
loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for step, batch in zip(range(STEPS), loader, strict=False):
    tokens, labels = (batch[name].to(accelerator.device) for name in ("tokens", "labels"))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step}: loss {loss.item():.3f}")
