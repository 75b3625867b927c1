"""Let the Megatron of this environment build what a cache has, and compare everything."""

from __future__ import annotations

import importlib
import resource
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec

import distcache
from distcache.builder.build_record import read_build_record
from distcache.cache.contents import Cache, open_cache
from distcache.cache.corpus_places import Moves, corpus_places
from distcache.errors import CacheCorrupt, ConfigError, DistcacheError, NotReady
from distcache.extras import needing
from distcache.launch.doctor.training import alone, quiet
from distcache.megatron.export import wrong_files
from distcache.megatron.names import Naming
from distcache.plan.config import SPLITS
from distcache.storage.units import counted

PREFIX: Final = "distcache-megatron."  # of the directory in TMPDIR
MAX_SAMPLES: Final = 1000  # that are compared, evenly spaced over training
MAX_NAMED: Final = 3  # differing files in a message
TOKENIZER: Final = {"class": "distcache"}  # in the names of files that are removed again
FOREIGN: Final = {"phases", "continue"}  # fields of an identity that Megatron does not have


class Rebuilt(msgspec.Struct, frozen=True):
    """What Megatron-Core built of a cache's corpora, all of it equal to the cache."""

    release: str  # release of Megatron-Core
    seconds: float  # duration of its builder, on one rank
    own_seconds: float | None  # duration of distcache's build; None if it is not recorded whole
    own_ranks: int | None  # ranks of that build
    files: int  # files that Megatron wrote
    samples: int  # training samples that both read

    def text(self) -> str:
        """Return both durations, and what was compared, in one line."""
        own = ""
        if self.own_seconds is not None and self.own_ranks is not None:
            own = f", distcache on {counted(self.own_ranks, 'rank')} {self.own_seconds:.2f} s"
        return (
            f"Megatron-Core {self.release} on one rank {self.seconds:.2f} s{own}: "
            f"all {self.files:,} files equal, {self.samples:,} of {self.samples:,} samples equal"
        )


def rebuild_with_megatron(path: str | Path, moves: Moves = ()) -> Rebuilt:
    """Build a cache's arrays with Megatron-Core, in a temporary directory, and compare them.

    Parameters
    ----------
    path : path
        A cache in Megatron's order, whose corpora are files.
    moves : sequence of (str, str)
        Directories of corpora at the time of the build, and now.

    Returns
    -------
    Rebuilt
        Duration of Megatron's builder, and how much was compared.

    Raises
    ------
    CacheCorrupt
        If an array or a sample differs.
    ConfigError
        If Megatron has no such order, is not installed, or cannot build.
    """
    cache = open_cache(path)
    cache.moves = moves
    foreign = sorted(FOREIGN & cache.identity.keys())
    foreign += ["fim_data"] if cache.naming.get("fim_data") else []
    if (order := cache.identity["order"]) != "megatron" or foreign:
        reason = f"order: {order}" if order != "megatron" else ", ".join(foreign)
        raise ConfigError(f"{cache.path}: is not in Megatron's own order ({reason})")
    with needing("--against-megatron"):
        importlib.import_module("torch")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # Megatron holds two files per corpus
    places = dict(zip(cache.prefixes, corpus_places(cache), strict=True))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, alone(Path(name)):
        directory = Path(name) / "cache"
        try:
            with quiet():
                release, built, seconds = _build(cache, places, directory)
        except DistcacheError:  # an interruption
            raise
        except ImportError as error:
            text = f"{error}: pip install megatron-core, or run this in the training container"
            raise ConfigError(f"Megatron-Core cannot be imported: {text}") from error
        except Exception as error:  # Megatron's are of any kind
            text = f"Megatron-Core cannot build it here: {type(error).__name__}: {error}"
            raise ConfigError(f"{cache.path}: {text}") from error
        wrong = list(wrong_files(cache, directory, places.__getitem__, Naming(tokenizer=TOKENIZER)))
        if wrong:
            names = ", ".join(path.name for path in wrong[:MAX_NAMED])
            text = f"Megatron-Core {release} builds {len(wrong)} other files: {names}"
            raise CacheCorrupt(f"{cache.path}: {text}")
        files = len(list(directory.iterdir()))
        samples = 0
        if built[0] is not None:
            ours = distcache.open(path, prefixes=dict(moves))
            samples = _compare_samples(ours.dataset("train", eod=0), built[0])
    return Rebuilt(release, seconds, *_own_duration(cache), files, samples)


def _own_duration(cache: Cache) -> tuple[float | None, int | None]:
    """Return the seconds and ranks of distcache's build, unless it took parts of earlier ones."""
    try:
        record = read_build_record(cache.path)
    except (NotReady, CacheCorrupt):
        return None, None
    if record.key != cache.key or record.resumed or record.reused_items:
        return None, None
    return sum(record.ranks[0].seconds.values()), len(record.ranks)


def _build(cache: Cache, places: dict[str, str], directory: Path) -> tuple[str, list[Any], float]:
    """Return Megatron's release, its datasets, and the seconds of its builder."""
    release = importlib.import_module("megatron.core.package_info").__version__
    gpt = importlib.import_module("megatron.core.datasets.gpt_dataset")
    builder = importlib.import_module("megatron.core.datasets.blended_megatron_dataset_builder")
    identity = cache.identity
    blends = {
        split: (
            [places[cache.prefixes[source]] for source, _ in entries],
            None if None in (weights := [weight for _, weight in entries]) else weights,
        )
        for split, entries in cache.naming["blends"].items()
    }
    per_split = identity["blend"] is None
    settings = gpt.GPTDatasetConfig(
        random_seed=identity["seed"],
        sequence_length=identity["sequence_length"],
        blend=None if per_split else blends["train"],
        blend_per_split=[blends.get(split) for split in SPLITS] if per_split else None,
        split=identity["split"],
        multiple_validation_sets=identity["multiple_validation_sets"],
        full_validation=identity["samples"]["valid"] is None,
        path_to_cache=str(directory),
        mid_level_dataset_surplus=identity["mid_level_dataset_surplus"],
        tokenizer=SimpleNamespace(
            unique_identifiers=OrderedDict(TOKENIZER),
            eod=0,
            pad=-1,
            vocab_size=None,
            special_tokens_dict={},
        ),
        drop_last_partial_validation_sequence=identity["drop_last_partial_validation_sequence"],
        add_extra_token_to_sequence=identity["add_extra_token"],
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [identity["samples"][split] for split in SPLITS]
    asked = builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, settings)
    begin = time.perf_counter()
    built = asked.build()
    return release, built, time.perf_counter() - begin


def _compare_samples(ours: Any, theirs: Any) -> int:
    """Compare samples that both read, and return how many there were."""
    count = min(len(theirs), MAX_SAMPLES)
    for i in (len(theirs) * number // count for number in range(count)):
        mine, other = ours[i], theirs[i]
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            if not mine[name].equal(other[name]):
                raise CacheCorrupt(f"sample {i} of training: {name} differs from Megatron-Core's")
    return count
