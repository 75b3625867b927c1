"""Give Megatron's training the datasets of a cache: no export, no names, no build."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch.utils.data import Dataset

from distcache.errors import ConfigError
from distcache.plan.config import SPLITS
from distcache.train.batch import BatchRow
from distcache.train.dataset import CachedDataset, dataset_count
from distcache.train.open import OpenCache, open_cache
from distcache.train.same_cache import agree

__all__ = ["Asked", "MegatronDataset", "MegatronProvider", "datasets_for", "padding_of", "provider"]

# Megatron's options of samples, by those of `SampleOptions`. Older releases lack the last.
MASKS: Final = {
    "reset_position_ids": "reset_position_ids",
    "reset_attention_mask": "reset_attention_mask",
    "eod_mask_loss": "eod_mask_loss",
    "create_attention_mask": "create_attention_mask_in_dataloader",
    "allow_ambiguous_pad_tokens": "allow_ambiguous_pad_tokens",
    "inter_document_masking": "dataloader_inter_document_masking",
}
OTHER_SAMPLES: Final = {
    "fim_data": "draws with a generator that each worker has to itself, which no resumed run "
    "repeats; let Megatron make these samples: distcache export --fim-data",
    "sft": "is for data that has no index",
    "mock_data": "is for no data at all",
}
Datasets = tuple[Any, Any, Any]


class Asked(NamedTuple):
    """What training asks of its datasets.

    Attributes
    ----------
    samples : sequence of int or None
        Of each split; None is one epoch.
    sequence_length, seed : int
        Must be the cache's.
    several_valid : bool
        Whether each validation set is a dataset of its own.
    options : mapping
        The fields of `SampleOptions`.
    """

    samples: Sequence[int | None]
    sequence_length: int
    seed: int
    several_valid: bool
    options: Mapping[str, Any]


class MegatronDataset(Dataset[Any]):
    """A split as Megatron's loaders take it.

    Attributes
    ----------
    dataset : CachedDataset
        The samples.
    split : Split
        Megatron's, by which it takes the batch sizes of evaluation.
    """

    def __init__(self, dataset: CachedDataset, split: Any) -> None:
        self.dataset = dataset
        self.split = split

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int | None]) -> list[BatchRow]:
        """Return several samples that are read together; called by `DataLoader`."""
        return self.dataset.__getitems__(indices)


def datasets_for(opened: OpenCache, asked: Asked, *, exact: bool) -> Datasets:
    """Return the training, validation and test datasets of a cache. Collective if torch is.

    Parameters
    ----------
    opened : OpenCache
        The cache.
    asked : Asked
        What training wants.
    exact : bool
        Whether the cache must be one for as many samples, so that their order is Megatron's; if
        not, it may have more.

    Returns
    -------
    tuple
        A `MegatronDataset` of each split, a list of them for several validation sets, or None for
        a split without samples.

    Raises
    ------
    ConfigError
        If the cache was built for something else.
    KeyMismatch
        If ranks of torch.distributed read different caches.
    """
    _require_asked(opened, asked, exact=exact)
    if dist.is_available() and dist.is_initialized():
        agree(opened)
    splits = importlib.import_module("megatron.core.datasets.utils").Split

    def dataset(split: str, number: int | None = None) -> MegatronDataset:
        found = MegatronDataset(opened.dataset(split, number, **asked.options), splits[split])
        if not exact:
            _require_enough(opened, split, len(found), asked.samples[SPLITS.index(split)])
        return found

    def datasets(split: str) -> Any:
        if split == "valid" and asked.several_valid:
            return [dataset(split, number) for number in range(dataset_count(opened, split))]
        return dataset(split) if split in opened.splits else None

    train, valid, test = map(datasets, SPLITS)
    return train, valid, test


def _require_asked(opened: OpenCache, asked: Asked, *, exact: bool) -> None:
    """Require that a cache was built for what training asks for."""
    identity = opened.cache.identity
    wanted: dict[str, Any] = {"sequence_length": asked.sequence_length, "seed": asked.seed}
    if exact:
        wanted["samples"] = dict(zip(SPLITS, asked.samples, strict=True))
    differing = [
        f"{name} is {identity[name]} in the cache, {value} in training"
        for name, value in wanted.items()
        if identity[name] != value
    ]
    if differing:
        remedy = "build one with this training command"
        if "samples" in differing[-1]:
            remedy += ", or pass exact=False for another order than Megatron's"
        raise ConfigError(f"{opened.path}: {'; '.join(differing)}; {remedy}")


def _require_enough(opened: OpenCache, split: str, size: int, wanted: int | None) -> None:
    if wanted is not None and size < wanted:
        raise ConfigError(
            f"{opened.path}: has {size} samples in split {split!r}, training asks for {wanted}; "
            "build one with this training command"
        )


def padding_of(tokenizer: Any, *, allow_ambiguous: bool) -> int:
    """Return the padding that Megatron treats as such, by `MegatronDataset` of megatron-core.

    It is -1, which no token is, if the tokenizer has none, or one that is another special token.
    """
    pad: int | None = None
    with contextlib.suppress(Exception):  # as Megatron does
        pad = tokenizer.pad
    special: list[int] = []
    with contextlib.suppress(AttributeError, IndexError, ValueError):
        named = tokenizer.special_tokens_dict.items()
        special = [token for name, token in named if name != "pad_token"]
    for name in () if special else ("eos", "eod"):
        with contextlib.suppress(AttributeError, NotImplementedError):
            special.append(getattr(tokenizer, name))
    return -1 if pad is None or (pad in special and not allow_ambiguous) else pad


class MegatronProvider:
    """Gives Megatron-LM's training the datasets of a cache; made by `provider`.

    Attributes
    ----------
    is_distributed : bool
        Tells Megatron to call this on all ranks.
    """

    is_distributed = True

    def __init__(
        self,
        cache: str | Path,
        local: str | Path | None,
        is_built: Callable[..., bool],
        *,
        exact: bool,
    ) -> None:
        self.cache = cache
        self.local = local
        self.is_built = is_built
        self.exact = exact

    def __call__(self, samples: Sequence[int | None], vp_stage: int | None = None) -> Datasets:
        """Return the datasets of this rank. Collective.

        Parameters
        ----------
        samples : sequence of int or None
            Asked for by Megatron, of each split.
        vp_stage : int or None
            The stage of a virtual pipeline.
        """
        training = importlib.import_module("megatron.training")
        options = training.get_args()
        for name, reason in OTHER_SAMPLES.items():
            if getattr(options, name, False):
                raise ConfigError(f"--{name.replace('_', '-')}: {reason}")
        tokenizer = training.get_tokenizer()
        masks = {ours: getattr(options, name, False) for ours, name in MASKS.items()}
        pad = padding_of(tokenizer, allow_ambiguous=masks["allow_ambiguous_pad_tokens"])
        asked = Asked(
            samples=samples,
            sequence_length=options.seq_length,
            seed=options.seed,
            several_valid=getattr(options, "multiple_validation_sets", False),
            options={"eod": tokenizer.eod, "pad": pad, **masks},
        )
        train, valid, test = datasets_for(
            open_cache(self.cache, self.local), asked, exact=self.exact
        )
        if self.is_built(vp_stage=vp_stage):
            return train, valid, test
        return None, [None] * len(valid) if isinstance(valid, list) else None, None


def _is_built(vp_stage: int | None = None) -> bool:
    """Return whether this rank reads data: the first of a tensor group, at a pipeline's ends."""
    state = importlib.import_module("megatron.core.parallel_state")
    stage = {"ignore_virtual": vp_stage is None, "vp_stage": vp_stage}
    is_end = state.is_pipeline_first_stage(**stage) or state.is_pipeline_last_stage(**stage)
    return bool(is_end and state.get_tensor_model_parallel_rank() == 0)


def provider(
    cache: str | Path,
    local: str | Path | None = None,
    *,
    exact: bool = True,
    is_built: Callable[..., bool] = _is_built,
) -> MegatronProvider:
    """Return what ``pretrain_gpt.py`` gives to `pretrain` as its provider of datasets.

    Samples are those of Megatron's own datasets, in the same order; the cache says of which
    corpora, and options of data on the command line are not read.

    Parameters
    ----------
    cache : path
        The shared cache, as `distcache build` printed it.
    local : path or None
        This node's store; by default where `distcache localize` puts it.
    exact : bool
        Whether the cache must be one for as many samples as training asks for, so that their order
        is Megatron's; if not, it may have more.
    is_built : callable
        Whether a rank reads data, given ``vp_stage=``: `is_dataset_built_on_rank` of the script.

    Returns
    -------
    MegatronProvider
        Called by Megatron, on all ranks.

    Examples
    --------
    >>> train_valid_test_datasets_provider = distcache.megatron.provider("/caches/mix.dcache")
    """
    return MegatronProvider(cache, local, is_built, exact=exact)
