"""Let the Megatron of this environment build what a cache has, and compare everything."""

from __future__ import annotations

import importlib
import platform
import resource
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import msgspec

from distcache.builder.build_record import read_build_record
from distcache.cache.contents import Cache, Contents, open_cache
from distcache.cache.corpus_places import corpus_places
from distcache.errors import CacheCorrupt, ConfigError, DistcacheError, NotReady
from distcache.launch.doctor.training import alone, quiet
from distcache.megatron.export import wrong_files
from distcache.megatron.names import Naming, megatron_files
from distcache.plan.config import SPLITS
from distcache.storage.space import require_space
from distcache.storage.units import counted

PREFIX: Final = "distcache-megatron."  # of the directory in TMPDIR
MAX_NAMED: Final = 3  # differing files in a message
# The names of files that are removed again.
NAMING: Final = Naming(tokenizer={"class": "distcache"}, fim=False)


class Rebuilt(msgspec.Struct, frozen=True):
    """What Megatron-Core built of a cache's corpora, all of it equal to the cache."""

    release: str  # release of Megatron-Core
    seconds: float  # duration of its builder, on one rank
    own_seconds: float | None  # duration of distcache's build; None if it is not recorded whole
    own_ranks: int | None  # ranks of that build
    files: int  # files that Megatron wrote

    def text(self) -> str:
        """Return both durations, and what was compared, in one line."""
        own = ""
        if self.own_seconds is not None and self.own_ranks is not None:
            own = f", distcache on {counted(self.own_ranks, 'rank')} {self.own_seconds:.2f} s"
        return (
            f"Megatron-Core {self.release} on one rank {self.seconds:.2f} s{own}: "
            f"all {self.files:,} files are equal"
        )


def require_megatrons(contents: Contents) -> None:
    """Refuse a cache that Megatron-Core cannot build, and an environment without it.

    Raises
    ------
    ConfigError
        If Megatron has no such order, or is not installed.
    """
    identity = contents.identity
    blends = identity["blend_per_split"] or {"train": identity["blend"]}
    here = "fused" if platform.machine() == "aarch64" else "separate"
    arithmetic = identity.get("blend_arithmetic", "separate")
    reasons = {
        f"order: {identity['order']}": identity["order"] != "megatron",
        "phases": "phases" in identity,
        "continue": "continue" in identity,
        "samples of one validation set": any(
            len(entry) > 2 for blend in blends.values() for entry in blend
        ),
        f"blend_arithmetic: {arithmetic}, and this machine's is {here}": arithmetic != here,
    }
    found = [reason for reason, applies in reasons.items() if applies]
    if found:
        raise ConfigError(f"{contents.path}: Megatron-Core here cannot build it: {found[0]}")
    try:
        with quiet():
            importlib.import_module("megatron.core.datasets.blended_megatron_dataset_builder")
    except ImportError as error:
        raise ConfigError(
            f"Megatron-Core cannot be imported ({error}): pip install megatron-core, or run this "
            "in the training container"
        ) from error


def rebuild_with_megatron(path: str | Path, moves: tuple[tuple[str, str], ...] = ()) -> Rebuilt:
    """Build a cache's arrays with Megatron-Core, in a temporary directory, and compare them.

    Parameters
    ----------
    path : path
        A cache that `require_megatrons` lets pass, whose corpora are files.
    moves : sequence of (str, str)
        Directories of corpora at the time of the build, and now.

    Returns
    -------
    Rebuilt
        Duration of Megatron's builder, and how much was compared.

    Raises
    ------
    CacheCorrupt
        If a file differs.
    ConfigError
        If Megatron cannot build.
    NoSpace
        If its files do not fit into the temporary directory.
    """
    cache = open_cache(path)
    cache.moves = moves
    places = dict(zip(cache.prefixes, corpus_places(cache), strict=True))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        directory = Path(name) / "cache"
        advice = "set TMPDIR to a directory of another filesystem"
        require_space(Path(name), cache.header.file_size, advice)
        try:
            with quiet(), alone():
                release, seconds = _build(cache, places, directory)
        except DistcacheError:  # an interruption
            raise
        except Exception as error:  # Megatron's are of any kind
            text = f"Megatron-Core cannot build it here: {type(error).__name__}: {error}"
            raise ConfigError(f"{cache.path}: {text}") from error
        expected = {
            f"{entry.stem}-{end}"
            for entry in megatron_files(cache, places.__getitem__, NAMING)
            for end in ("description.txt", *(f"{array}.npy" for array in entry.arrays))
        }
        wrong = {path.name for path in wrong_files(cache, directory, places.__getitem__, NAMING)}
        wrong |= expected ^ {path.name for path in directory.iterdir()}
    if wrong:
        names = ", ".join(sorted(wrong)[:MAX_NAMED])
        text = f"Megatron-Core {release} builds {counted(len(wrong), 'other file')}: {names}"
        raise CacheCorrupt(f"{cache.path}: {text}")
    return Rebuilt(release, seconds, *_own_duration(cache), len(expected))


def _own_duration(cache: Cache) -> tuple[float | None, int | None]:
    """Return the seconds and ranks of distcache's build, unless it took parts of earlier ones."""
    try:
        record = read_build_record(cache.path)
    except (NotReady, CacheCorrupt):
        return None, None
    if record.key != cache.key or record.resumed or record.reused_items:
        return None, None
    return sum(record.ranks[0].seconds.values()), len(record.ranks)


def _build(cache: Cache, places: dict[str, str], directory: Path) -> tuple[str, float]:
    """Return Megatron's release, and the seconds of its builder."""
    release: str = importlib.import_module("megatron.core.package_info").__version__
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
            unique_identifiers=OrderedDict(NAMING.tokenizer or {}),
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
    dataset_builder = builder.BlendedMegatronDatasetBuilder(
        gpt.GPTDataset, sizes, lambda: True, settings
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it holds two files of each corpus
    begin = time.perf_counter()
    try:
        dataset_builder.build()
    finally:
        seconds = time.perf_counter() - begin
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return release, seconds
