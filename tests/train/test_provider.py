"""Which token is padding, by the rule of Megatron-Core's `MegatronDataset`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from distcache.train.provider import padding_of


class Wordless:
    """A tokenizer that raises for what it does not have, as Megatron's do."""

    @property
    def pad(self) -> int:
        """Not there."""
        raise NotImplementedError

    eos = pad
    eod = 3


@pytest.mark.parametrize(
    ("tokenizer", "padding", "ambiguous"),
    [
        (SimpleNamespace(pad=5, eod=7), 5, 5),
        (SimpleNamespace(pad=7, eod=7), -1, 7),
        (SimpleNamespace(pad=6, eos=6, eod=7), -1, 6),
        (SimpleNamespace(pad=7, eod=7, special_tokens_dict={"bos_token": 1}), 7, 7),
        (SimpleNamespace(pad=7, eod=7, special_tokens_dict={"pad_token": 7}), -1, 7),
        (SimpleNamespace(pad=4, eod=7, special_tokens_dict={"sep": 4}), -1, 4),
        (SimpleNamespace(pad=None, eod=7), -1, -1),
        (SimpleNamespace(eod=7), -1, -1),
        (Wordless(), -1, -1),
    ],
)
def test_padding(tokenizer: Any, padding: int, ambiguous: int) -> None:
    """None but where the tokenizer has one that is no other special token."""
    assert padding_of(tokenizer, allow_ambiguous=False) == padding
    assert padding_of(tokenizer, allow_ambiguous=True) == ambiguous
