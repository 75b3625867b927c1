"""A cache as Megatron-Bridge's configuration of data; imports the Megatron-Bridge that is there.

By ``megatron/bridge/data/base.py`` and ``data/utils.py`` of Megatron-Bridge 0.6.2, which has a
registry of builders by their configuration, and by ``training/config.py`` of 0.3.1, whose
`DatasetProvider` is deprecated since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from distcache.errors import ConfigError
from distcache.train.provider import Asked, Datasets, datasets_for, tokens_of

try:
    from megatron.bridge.data.base import DataloaderConfig as Base
    from megatron.bridge.data.utils import _REGISTRY as REGISTRY
except ImportError:  # an earlier one
    from megatron.bridge.training.config import DatasetProvider as Base

    REGISTRY = {}


@dataclass(kw_only=True)
class CachedDatasetProvider(Base):  # type: ignore[misc]
    """The datasets of a cache, for ``ConfigContainer(dataset=...)``.

    Its other fields are Megatron-Bridge's: the type of the loader, workers, and so on.
    """

    cache: str  # path of the shared cache
    # the cache's, and the model's, which Megatron-Bridge compares for its own types only
    seq_length: int
    random_seed: int = 1234  # the cache's
    local: str | None = None  # this node's store; by default where `distcache localize` puts it
    # whether the cache must be one for as many samples as training asks for, so that their order is
    # Megatron's; if not, it may have more
    exact: bool = True
    dataloader_type: str | None = "single"
    # fields of Megatron's `GPTDatasetConfig`; masks are made by the attention kernels unless the
    # last is given
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = False
    # field of Megatron-Bridge's `GPTDatasetConfig`
    skip_getting_attention_mask_from_dataset: bool = True
    tokenizer: Any = None  # set by Megatron-Bridge

    def build_datasets(self, context: Any) -> Datasets:
        """Return the datasets; called by Megatron-Bridge. Collective.

        Parameters
        ----------
        context : DatasetBuildContext
            The samples that are asked for, and the tokenizer.
        """
        tokenizer = context.tokenizer or self.tokenizer
        if tokenizer is None:
            raise ConfigError("CachedDatasetProvider: training has no tokenizer")
        masks = {
            "reset_position_ids": self.reset_position_ids,
            "reset_attention_mask": self.reset_attention_mask,
            "eod_mask_loss": self.eod_mask_loss,
            "create_attention_mask": self.create_attention_mask,
        }
        asked = Asked(
            samples=(context.train_samples, context.valid_samples, context.test_samples),
            recipe={
                "sequence_length": self.seq_length,
                "seed": self.random_seed,
                "multiple_validation_sets": False,
            },
            options=masks | tokens_of(tokenizer, allow_ambiguous=False),
        )
        return datasets_for(self.cache, self.local, asked, exact=self.exact)


def _build_datasets(
    samples: Sequence[int], config: CachedDatasetProvider, tokenizer: Any = None
) -> Datasets:
    """Return the datasets of a configuration; called by Megatron-Bridge. Collective."""
    train, valid, test = samples
    context = SimpleNamespace(
        train_samples=train, valid_samples=valid, test_samples=test, tokenizer=tokenizer
    )
    return config.build_datasets(context)


REGISTRY[CachedDatasetProvider] = _build_datasets
