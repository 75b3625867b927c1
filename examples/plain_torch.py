"""Train from a cache with plain torch, and resume: python plain_torch.py CACHE."""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import distcache

CHECKPOINT = Path("checkpoint.pt")
VOCABULARY, BATCH, STEPS = 30_000, 4, 5

dataset = distcache.open(sys.argv[1]).dataset("train")
model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
optimizer = torch.optim.AdamW(model.parameters())
consumed = 0
if CHECKPOINT.exists():
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    consumed = state["consumed"]
# Every rank of a job gives its number and theirs; any number of ranks continues the same order.
sampler = distcache.ResumableSampler(dataset, BATCH, consumed_samples=consumed)
loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
for step, batch in zip(range(STEPS), loader, strict=False):
    logits = model(batch["tokens"]).flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, batch["labels"].flatten(), reduction="none")
    loss = (losses * batch["loss_mask"].flatten()).sum() / batch["loss_mask"].sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    consumed += BATCH
    print(f"step {step}: samples {consumed}, loss {loss.item():.3f}")
torch.save({"model": model.state_dict(), "consumed": consumed}, CHECKPOINT)
