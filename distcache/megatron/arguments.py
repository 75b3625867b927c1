"""The options that make Megatron ask for what a cache holds; the ranks that read it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec

from distcache.cache.contents import Contents
from distcache.errors import ConfigError
from distcache.plan.config import SPLITS
from distcache.storage.url import is_url

DEFAULT_SURPLUS = 0.005
# Megatron refuses data paths beside the file of --data-args-path.
IN_THE_PLACE = "instead of --data-path, --{train,valid,test}-data-path and the like"
# Megatron takes the type of tokens from the vocabulary, where it does not read the header.
TYPE_OF_SMALL_VOCABULARY = 8
TYPE_OF_LARGE_VOCABULARY = 4
PACKED_NOTES = (
    "the rows are packed: training needs --eod-mask-loss, --reset-position-ids or "
    "--reset-attention-mask, without which Megatron keeps the loss mask of the first sample for "
    "all, padded or not; and never --dataloader-defer-npy-index-mmap",
    "padding has no loss only if the tokenizer has a padding token that is not its end of a "
    "document; multi-token prediction of Megatron-Bridge has a loss on padding anyway",
)
PHASES_NOTE = (
    "the weights change in phases, and those of the options are the mean: a blend that Megatron "
    "does not find it builds by them, without phases; `doctor` says whether it finds all, and "
    "distcache.megatron.provider reads the cache itself",
)
OBJECTS_NOTE = (
    "Megatron's own reader fetches 256 MiB for every document that is not in memory; with "
    "distcache.MegatronBinReader in its place (docs/buckets.md), or with copies of the .bin files "
    "on the node (localize --bin copy), it does not"
)


def blend_words(
    cache: Contents, split: str, rename: Callable[[str], str] = str
) -> list[str] | None:
    """Return the blend of a split as Megatron spells it: weights and prefixes in turn.

    Parameters
    ----------
    cache : Cache
        The cache.
    split : str
        "train", "valid" or "test".
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.

    Returns
    -------
    list of str or None
        None for a split without a blend.
    """
    blend = cache.naming["blends"].get(split)
    if blend is None:
        return None
    words = []
    for source, weight in blend:
        words += [] if weight is None else [repr(float(weight))]
        words.append(rename(cache.prefixes[source]))
    return words


class Arguments(msgspec.Struct, frozen=True):
    """The options for Megatron."""

    options: tuple[str, ...]  # each an option with its values, quoted for a shell
    files: dict[Path, str]  # texts that options name, to be written
    warnings: tuple[str, ...]  # warnings about what holds only for some tokenizers


def megatron_arguments(
    cache: Contents,
    directory: Path,
    stem: Path,
    rename: Callable[[str], str] = str,
    objects: Path | None = None,
) -> Arguments:
    """Return the options that go with an exported directory, and the files that they name.

    Parameters
    ----------
    cache : Contents
        The cache.
    directory : Path
        Directory for ``--data-cache-path``.
    stem : Path
        Start of the paths of the files.
    rename : callable
        Argument of `blend_words`.
    objects : Path or None
        Directory of the `.idx` of corpora in buckets, for ``--object-storage-cache-path``.
    """
    blend, files = _blend_option(cache, stem, rename)
    is_packed = "packing" in cache.identity
    options = [["--data-cache-path", str(directory)], *blend, *_size_options(cache)]
    options += [["--eod-mask-loss"]] if is_packed else []
    if any(is_url(rename(prefix)) for prefix in cache.prefixes):
        options += [["--object-storage-cache-path", str(objects or "DIRECTORY")]]
        options += [["--no-mmap-bin-files"]]
        return Arguments(tuple(map(shlex.join, options)), files, (OBJECTS_NOTE,))
    sequences = Path(f"{stem}-sequences.json")
    files[sequences] = sequences_document(cache, rename)
    # With these options a missing file is an error, and is not built.
    fast = [["--dataloader-fast-cache-load"]] if cache.identity["blend"] is None else []
    # It computes the number of samples from that of the tokens, which packed samples do not have.
    options += [] if is_packed else [["--dataloader-defer-npy-index-mmap"]]
    options += fast
    by_tokenizer = ["--per-dataset-sequences-path", str(sequences)]
    codes = set(cache.table("sources")["type_code"].tolist())
    warnings = []
    if codes == {TYPE_OF_SMALL_VOCABULARY}:
        options.append(by_tokenizer)
    elif codes == {TYPE_OF_LARGE_VOCABULARY}:
        warnings.append(
            f"if the tokenizer has more than {2**16} tokens, add {shlex.join(by_tokenizer)}, which "
            "spares Megatron the headers of the .idx files"
        )
    return Arguments(tuple(map(shlex.join, options)), files, tuple(warnings))


def _blend_option(
    cache: Contents, stem: Path, rename: Callable[[str], str]
) -> tuple[list[list[str]], dict[Path, str]]:
    """Return the options that name the corpora, and the file that holds them."""
    if cache.identity["blend"] is None:
        path = Path(f"{stem}-per-split.json")
        document = {split: blend_words(cache, split, rename) for split in SPLITS}
        return [["--per-split-data-args-path", str(path)]], {path: json.dumps(document, indent=4)}
    words = blend_words(cache, "train", rename) or []
    split = ["--split", cache.identity["split"]]
    if any(len(word.split()) != 1 for word in words):  # Megatron splits the file at white space
        return [["--data-path", *words], split], {}
    path = Path(f"{stem}-data-args.txt")
    return [["--data-args-path", str(path)], split], {path: "\n".join(words) + "\n"}


def _size_options(cache: Contents) -> list[list[str]]:
    identity = cache.identity
    options = [
        ["--seq-length", str(identity["sequence_length"])],
        ["--seed", str(identity["seed"])],
    ]
    if (surplus := identity["mid_level_dataset_surplus"]) != DEFAULT_SURPLUS:
        options.append(["--mid-level-dataset-surplus", repr(surplus)])
    if (train := identity["samples"]["train"]) is not None:
        options.append(["--train-samples", str(train)])
    if identity["samples"]["valid"] is None:
        options.append(["--full-validation"])
    if identity["multiple_validation_sets"]:
        options.append(["--multiple-validation-sets"])
    return options


def sequences_document(cache: Contents, rename: Callable[[str], str] = str) -> str:
    """Return the JSON that ``--per-dataset-sequences-path`` reads.

    For each corpus, its sequences and the entries of its document boundaries. With it Megatron
    reads no header, and takes the type of the tokens from the size of the tokenizer's vocabulary:
    unsigned 16-bit integers up to 65,536, else 32-bit ones.
    """
    sources = cache.table("sources")
    counts = zip(sources["sequences"].tolist(), sources["documents"].tolist(), strict=True)
    pairs = zip(cache.prefixes, counts, strict=True)
    document = {rename(prefix): [sequences, docs + 1] for prefix, (sequences, docs) in pairs}
    return json.dumps(document, indent=1)


def megatron_warnings(cache: Contents) -> list[str]:
    """Return settings that Megatron only takes in code: no option and no file name has them."""
    partial = "drop_last_partial_validation_sequence"
    defaults = {"add_extra_token": "add_extra_token_to_sequence", partial: partial}
    return [
        f"this cache has {name}: false; its arrays are only right for a GPTDatasetConfig with "
        f"{theirs}=False, which Megatron's names do not tell apart"
        for name, theirs in defaults.items()
        if not cache.identity[name]
    ] + [
        text
        for name, texts in (("packing", PACKED_NOTES), ("phases", PHASES_NOTE))
        if name in cache.identity
        for text in texts
    ]


class ParallelLayout(msgspec.Struct, frozen=True):
    """The parallel layout of a training job."""

    # sizes of tensor, context and pipeline parallelism
    tp: int = 1
    cp: int = 1
    pp: int = 1
    gpus: int = 8  # ranks of a node


def parse_readers(text: str) -> ParallelLayout:
    """Parse a layout such as ``tp=8,pp=4,gpus=8``; what is left out is 1, and 8 ranks of a node.

    Raises
    ------
    ConfigError
        If it has another form.
    """
    fields = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(tp|cp|pp|gpus)\s*=\s*([1-9]\d{0,6})\s*", part)
        if found is None:
            raise ConfigError(f"--readers {text!r}: expected for example tp=8,pp=4,gpus=8")
        if found[1] in fields:
            raise ConfigError(f"--readers {text!r}: names {found[1]} twice")
        fields[found[1]] = int(found[2])
    return ParallelLayout(**fields)


def reading_nodes(layout: ParallelLayout, nodes: int) -> frozenset[int]:
    """Return the nodes with a rank that reads data.

    Parameters
    ----------
    layout : ParallelLayout
        Layout of the job.
    nodes : int
        Number of nodes, in the launcher's order, which is the order of the ranks.

    Raises
    ------
    ConfigError
        If the ranks of so many nodes cannot be laid out so.
    """
    world, model = nodes * layout.gpus, layout.tp * layout.cp * layout.pp
    if world % model:
        raise ConfigError(
            f"--readers: {nodes} nodes of {layout.gpus} ranks are {world}, no multiple of tp, cp "
            f"and pp together, {model}"
        )
    stage = world // layout.pp  # ranks of a pipeline stage, which follow one another
    return frozenset(
        rank // layout.gpus
        for rank in range(world)
        if rank % layout.tp == 0 and rank // stage in (0, layout.pp - 1)
    )
