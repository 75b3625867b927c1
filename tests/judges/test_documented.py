"""The whole command at the end of docs/megatron-lm.md is one that Megatron accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from distcache.errors import OptionWarning
from distcache.megatron.command_line import require_command
from tests.judges.training import validate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PAGE = Path(__file__).parents[2] / "docs" / "megatron-lm.md"


def commands() -> list[list[str]]:
    """Return the words of every command of the page that trains."""
    text = re.sub(r"\\\n\s*", " ", PAGE.read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    found = [line[line.index("torchrun") :] for line in lines if "--num-layers" in line]
    return [shlex.split(line) for line in found]


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with eight GPUs, as Megatron's validation asks for it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def test_what_the_page_says_is_what_megatron_takes(on_gpus: None) -> None:
    """The command that builds, which trains as well, and the one that reads what was exported."""
    first, last = (words[words.index("pretrain_gpt.py") + 1 :] for words in commands())
    assert "--data-path" in first
    assert "--data-args-path" in last
    validate(first)
    validate(last)


def test_the_options_that_are_replaced(on_gpus: None) -> None:
    """Megatron refuses them beside those that `export` prints."""
    last = commands()[1]
    words = last[last.index("pretrain_gpt.py") + 1 :]
    with pytest.raises(AssertionError):
        validate([*words, "--data-path", "/shared/data/web"])


def test_distcache_reads_it_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    """Every option of both is known."""
    for words in commands():
        require_command(words)
    assert not [warning for warning in recwarn if warning.category is OptionWarning]
