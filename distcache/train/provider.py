"""Give Megatron's training the datasets of a cache: no export, no names, no build."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from distcache.cache.deal import Deal
from distcache.errors import ConfigError, DistcacheError, KeyMismatch, NotReady
from distcache.plan.config import SPLITS
from distcache.train.batch import BatchRow
from distcache.train.dataset import CachedDataset
from distcache.train.open import OpenCache, open_cache

Datasets = tuple[Any, Any, Any]
"""Of each split a `ProvidedSplit`, several of them in a list, or None."""

# Megatron's options of samples, by those of `SampleOptions`. Older releases lack the last.
MASKS: Final = {
    "reset_position_ids": "reset_position_ids",
    "reset_attention_mask": "reset_attention_mask",
    "eod_mask_loss": "eod_mask_loss",
    "create_attention_mask": "create_attention_mask_in_dataloader",
    "inter_document_masking": "dataloader_inter_document_masking",
}
OTHER_SAMPLES: Final = {
    "fim_data": "draws with a generator that each worker has to itself, which no resumed run "
    "repeats; let Megatron make these samples: distcache export --fim-data",
    "input_mask_ratio": "is not known here; let Megatron make these samples: distcache export",
    "sft": "is for data that has no index",
    "mock_data": "is for no data at all",
}
NO_KEY: Final = bytes(32)  # of a rank that could not open its cache


class Asked(NamedTuple):
    """What training asks of its datasets."""

    samples: Sequence[int | None]  # samples of each split; None is one pass
    recipe: Mapping[str, Any]  # fields of the cache's identity that must be equal
    options: Mapping[str, Any]  # the fields of `SampleOptions`
    deal: str | None = None  # deal of the steps of training


class ProvidedSplit(Dataset[Any]):
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


def datasets_for(
    cache: str | Path, local: str | Path | None, asked: Asked, *, exact: bool
) -> Datasets:
    """Return the datasets of a cache. Collective if torch.distributed is initialized.

    Parameters
    ----------
    cache, local
        Arguments of `distcache.open`.
    asked : Asked
        Samples that training wants.
    exact : bool
        Whether the cache must be one for as many samples, so that their order is Megatron's; if
        not, it may have more.

    Raises
    ------
    ConfigError
        On all ranks the same, if the cache was built for something else.
    DistcacheError
        If it cannot be opened, as `open_on_all_ranks` says.
    """
    from megatron.core.datasets.utils import Split  # noqa: PLC0415  the user's, when it runs

    opened = open_on_all_ranks(cache, local)
    _require_asked(opened, asked, exact=exact)
    several = bool(opened.cache.identity["multiple_validation_sets"])

    def dataset(split: str, number: int | None = None) -> ProvidedSplit:
        deal = asked.deal if split == "train" else None
        samples = opened.dataset(split, number, **asked.options, deal=deal)
        found = ProvidedSplit(samples, Split[split])
        if not exact:
            _require_enough(opened, split, len(found), asked.samples[SPLITS.index(split)])
        return found

    def datasets(split: str) -> Any:
        if split not in opened.splits:
            return None
        if split == "valid" and several:
            return [dataset(split, number) for number in range(opened.dataset_count(split))]
        return dataset(split)

    train, valid, test = map(datasets, SPLITS)
    return train, valid, test


def _require_asked(opened: OpenCache, asked: Asked, *, exact: bool) -> None:
    """Require that a cache was built for what training asks for.

    Splits for which it has no data do not count: Megatron's own would have none either.
    """
    cache = opened.cache
    pairs = {name: (cache.identity[name], value) for name, value in asked.recipe.items()}
    if exact:
        for split in cache.naming["blends"]:
            wanted = asked.samples[SPLITS.index(split)]
            pairs[f"samples.{split}"] = (cache.identity["samples"][split], wanted)
    differing = [
        f"{name} is {_shown(theirs)} in the cache, {_shown(ours)} in training"
        for name, (theirs, ours) in pairs.items()
        if theirs != ours
    ]
    if differing:
        remedy = "build one with this training command"
        if all(text.startswith("samples.") for text in differing):
            remedy += ", or pass exact=False for another order than Megatron's"
        raise ConfigError(f"{opened.path}: {'; '.join(differing)}; {remedy}")


def _shown(value: Any) -> str:
    return "one pass" if value is None else str(value)


def _require_enough(opened: OpenCache, split: str, size: int, wanted: int | None) -> None:
    if wanted is not None and size < wanted:
        raise ConfigError(
            f"{opened.path}: has {size} samples in split {split!r}, training asks for {wanted}; "
            "build one with this training command"
        )


def padding_of(tokenizer: Any, *, allow_ambiguous: bool) -> int:
    """Return the padding that Megatron treats as such, as ``megatron_dataset.py`` finds it.

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


def tokens_of(tokenizer: Any, *, allow_ambiguous: bool) -> dict[str, Any]:
    """Return the fields of `SampleOptions` that follow from a tokenizer of Megatron's."""
    pad = padding_of(tokenizer, allow_ambiguous=allow_ambiguous)
    return {"eod": tokenizer.eod, "pad": pad, "allow_ambiguous_pad_tokens": True}  # as decided


def _first_of_tensor_group(**_: Any) -> bool:
    from megatron.core import parallel_state  # noqa: PLC0415

    return bool(parallel_state.get_tensor_model_parallel_rank() == 0)


class MegatronProvider:
    """The dataset provider that ``pretrain_gpt.py`` gives to Megatron-LM's `pretrain`.

    Samples and their order are those of Megatron's own datasets. The cache names the corpora; the
    provider does not read the command's data options.

    Parameters
    ----------
    cache : path
        The shared cache, as `distcache build` printed it.
    local : path or None
        This node's store; by default where `distcache localize` puts it.
    exact : bool
        Whether the cache must have as many samples as training asks for, so that their order is
        Megatron's. Otherwise the cache may have more.
    deal : bool
        Whether the samples of each step of training are dealt to ranks and micro batches, so that
        these have equal work.
    is_built : callable
        Whether a rank reads data, given ``vp_stage=``: the script's `is_dataset_built_on_rank`. By
        default the first rank of every tensor group, also where a pipeline's middle stages do not
        ask for batches.

    Attributes
    ----------
    is_distributed : bool
        Tells Megatron to call this on all ranks.

    Examples
    --------
    >>> provider = distcache.megatron.provider("/caches/pretrain.h5")
    """

    is_distributed = True

    def __init__(
        self,
        cache: str | Path,
        local: str | Path | None = None,
        *,
        exact: bool = True,
        deal: bool = False,
        is_built: Callable[..., bool] = _first_of_tensor_group,
    ) -> None:
        self.cache = cache
        self.local = local
        self.exact = exact
        self.deal = deal
        self.is_built = is_built

    def __call__(self, samples: Sequence[int | None], vp_stage: int | None = None) -> Datasets:
        """Return the datasets of this rank. Collective.

        Parameters
        ----------
        samples : sequence of int or None
            Asked for by Megatron, of each split.
        vp_stage : int or None
            The stage of a virtual pipeline.
        """
        from megatron.training import get_args, get_tokenizer  # noqa: PLC0415

        options = get_args()
        asked = _asked_by(options, get_tokenizer(), samples)
        if self.deal:
            asked = asked._replace(deal=deal_of(options))
        train, valid, test = datasets_for(self.cache, self.local, asked, exact=self.exact)
        if self.is_built(vp_stage=vp_stage):
            return train, valid, test
        return None, [None] * len(valid) if isinstance(valid, list) else None, None


def _asked_by(options: Any, tokenizer: Any, samples: Sequence[int | None]) -> Asked:
    """Return what Megatron's options ask for."""
    for name, reason in OTHER_SAMPLES.items():
        if getattr(options, name, None):
            raise ConfigError(f"--{name.replace('_', '-')}: {reason}")
    recipe = {
        "sequence_length": options.seq_length,
        "seed": options.seed,
        "mid_level_dataset_surplus": options.mid_level_dataset_surplus,
        "multiple_validation_sets": bool(getattr(options, "multiple_validation_sets", False)),
        "add_extra_token": True,  # which pretrain_gpt.py does not change
        "drop_last_partial_validation_sequence": True,
    }
    masks = {ours: getattr(options, name, False) for ours, name in MASKS.items()}
    tokens = tokens_of(tokenizer, allow_ambiguous=options.allow_ambiguous_pad_tokens)
    return Asked(samples, recipe, masks | tokens)


def deal_of(options: Any) -> str:
    """Return the deal of the steps of a run, of which one begins where training continues.

    Raises
    ------
    ConfigError
        If steps change their size, or samples are taken in another order.
    """
    for name in ("rampup_batch_size", "step_batch_size_schedule"):
        if getattr(options, name, None):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: steps of growing size are not dealt; leave deal out")
    kind = getattr(options, "dataloader_type", None)
    if kind not in (None, "single"):
        raise ConfigError(
            f"--dataloader-type {kind}: its samples are not taken in order, and not dealt; leave "
            "deal out"
        )
    sizes = options.global_batch_size, options.data_parallel_size, options.micro_batch_size
    return str(Deal(*sizes, begin=options.consumed_train_samples or 0))


def agree(cache: OpenCache, group: Any = None) -> None:
    """Compare the cache's key over the ranks of a process group. Collective.

    Parameters
    ----------
    cache : OpenCache
        The open cache of this rank.
    group : ProcessGroup or None
        An initialized group; by default all ranks.

    Raises
    ------
    ConfigError
        If there is no process group.
    KeyMismatch
        On all ranks the same; names the ranks whose key differs from most.
    """
    if not isinstance(cache, OpenCache):
        raise ConfigError(f"agree({cache!r}): expected a cache, as distcache.open returns it")
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("agree: call torch.distributed.init_process_group first")
    _require_one_key(_gather(bytes.fromhex(cache.key), group))


def open_on_all_ranks(path: str | Path, local: str | Path | None) -> OpenCache:
    """Open a cache on every rank of torch.distributed, if it is initialized. Collective then.

    Parameters
    ----------
    path, local
        Arguments of `open_cache`.

    Raises
    ------
    DistcacheError
        This rank's own, as `open_cache` raises it.
    NotReady
        If only other ranks could not open it; names them.
    KeyMismatch
        On all ranks the same, if they have opened different caches.
    """
    if not dist.is_available() or not dist.is_initialized():
        return open_cache(path, local)
    try:
        cache = open_cache(path, local)
    except DistcacheError:
        _gather(NO_KEY, None)  # nobody waits for this rank
        raise
    keys = _gather(bytes.fromhex(cache.key), None)
    failed = [str(rank) for rank, key in enumerate(keys) if key == NO_KEY]
    if failed:
        raise NotReady(f"{path}: rank(s) {', '.join(failed)} could not open it, and say why")
    _require_one_key(keys)
    return cache


def _gather(key: bytes, group: Any) -> list[bytes]:
    """Return the keys of all ranks. Collective."""
    nccl = "nccl" in str(dist.get_backend(group))
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    mine = torch.tensor(list(key), dtype=torch.uint8, device=device)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return [bytes(other.tolist()) for other in found]


def _require_one_key(keys: list[bytes]) -> None:
    if len(set(keys)) > 1:
        raise KeyMismatch(*disagreement([key.hex() for key in keys]))


def disagreement(keys: list[str]) -> list[str]:
    """Return which ranks have another key than most, or than rank 0 if there is no majority."""
    common = max(keys, key=keys.count)
    if 2 * keys.count(common) <= len(keys):
        common = keys[0]
    others = dict.fromkeys(key for key in keys if key != common)
    return [
        f"rank(s) {', '.join(str(rank) for rank, key in enumerate(keys) if key == other)} read the "
        f"cache with key {other}, the others {common}; localize it again on their nodes"
        for other in others
    ]
