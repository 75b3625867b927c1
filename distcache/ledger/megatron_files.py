"""The `.npy` files that Megatron-Core wrote itself, read as a cache: of runs that are over.

A description (``<md5>-<class>-<split>-description.txt``) is the JSON of a dataset; that of a blend
holds those of its datasets, whose MD5s name their files: ``megatron_dataset.py`` and
``blended_dataset.py`` of megatron-core 0.16.1 to 0.19.2.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import ArrayView, Cache
from distcache.cache.corpus_places import Moves, located_moved
from distcache.cache.format import ARRAY_NAMES, TABLES
from distcache.cache.other_files import directory_error
from distcache.corpus import open_idx
from distcache.errors import CacheCorrupt, ConfigError, NotReady
from distcache.megatron.export import export_in
from distcache.plan.config import SPLITS
from distcache.plan.sizes import sequence_range
from distcache.storage.files import read_file
from distcache.storage.threads import decodable

DESCRIPTION_SUFFIX: Final = "-description.txt"
MAX_DESCRIPTION_BYTES: Final = 64 << 20
BLEND_CLASS: Final = "BlendedDataset"
CHUNK_BOUNDARIES: Final = 1 << 20
Share = tuple[float, float] | None


@decodable
class _Dataset(msgspec.Struct, frozen=True):
    """What a description says of a dataset."""

    dataset_path: str
    sequence_length: int
    num_samples: int | None
    index_split: str
    split_matrix: tuple[Share, Share, Share]


class _Description(NamedTuple):
    """What a description says of a blend, or of a dataset that is alone."""

    is_blend: bool
    datasets: list[_Dataset]
    stems: list[Path]  # the start of the names of each dataset's files
    weights: list[float]


@dataclass(frozen=True)
class NpyView(ArrayView):
    """An array in a `.npy` file, which is mapped."""

    values: NDArray[Any]


def _require_in_order(path: Path) -> None:
    """Refuse an export whose steps are dealt: its samples are searched for in the cache's order."""
    exported = export_in(path if path.is_dir() else path.parent)
    if exported is not None and exported.deal is not None:
        raise ConfigError(
            f"{exported.directory}: is an export of dealt steps; trace the cache that it was made "
            f"of, with --deal {exported.deal}"
        )


class MegatronFiles(Cache):
    """The arrays of one split in a directory of Megatron's, as a cache of what is known.

    Descriptions do not say whether samples overlap by a token; the arrays do.

    Parameters
    ----------
    path : Path
        Directory, or the start of the names of a blend or dataset in it.
    split : str
        "train", "valid" or "test".
    moves : tuple of (str, str)
        Directories of corpora at the time of training, and now.

    Raises
    ------
    NotReady
        If it has no files of the split, or not all of them.
    ConfigError
        If it has several blends or datasets of the split.
    CacheCorrupt
        If a description or an array is not what it must be.
    """

    key = ""  # set below, for each directory
    sequence_length = 0
    add_extra_token = True

    def __init__(self, path: Path, split: str, moves: Moves = ()) -> None:
        self.path, self.moves = path, moves
        _require_in_order(path)
        stem, found = _find(path, split)
        self.key, self._directory = stem.name.partition("-")[0], stem.parent
        datasets = found.datasets
        self.prefixes = list(dict.fromkeys(one.dataset_path for one in datasets))
        self.sequence_length = datasets[0].sequence_length
        self.identity = {"order": "megatron", "drop_last_partial_validation_sequence": True}
        self._stems = {"blends": [stem] if found.is_blend else [], "sections": found.stems}
        here = str(Path.cwd())
        self._places = [located_moved(here, prefix, moves) for prefix in self.prefixes]
        counts = {"sources": len(self.prefixes), "sections": len(datasets)}
        counts |= {"blends": 0, "members": len(datasets)}
        self._tables = {name: np.zeros(count, TABLES[name]) for name, count in counts.items()}
        for row, place in enumerate(self._places):
            idx, entry = open_idx(place), self._tables["sources"][row]
            entry["idx_size"], entry["sequences"] = idx.size, len(idx.lengths)
            entry["documents"], entry["type_code"] = len(idx.bounds) - 1, idx.type_code
        members = self._tables["members"]
        members["split"], members["blend"] = split.encode(), 0 if found.is_blend else -1
        members["section"], members["weight"] = np.arange(len(datasets)), found.weights
        for row, one in enumerate(datasets):
            members["requested"][row] = -1 if one.num_samples is None else one.num_samples
            members["source"][row] = self.prefixes.index(one.dataset_path)
            self._describe(row, one, split)
        self.add_extra_token = self._overlaps()

    @property
    def splits(self) -> list[str]:
        """The splits that it has files of; `of_split` reads another one."""
        return [
            split for split in SPLITS if any(self._directory.glob(f"*-{split}{DESCRIPTION_SUFFIX}"))
        ]

    def of_split(self, split: str) -> MegatronFiles:
        """Return the same of another split."""
        return MegatronFiles(self._directory, split, self.moves)

    def table(self, name: str) -> NDArray[Any]:
        """Return a table, with what is known."""
        return self._tables[name]

    def columns_of(self, source: int) -> bytes:
        """Return nothing: corpora are of tokens."""
        del source
        return b""

    def arrays(self, table: str, row: int) -> dict[str, ArrayView]:
        """Return the arrays of a section or blend.

        Raises
        ------
        NotReady
            If a file is missing.
        CacheCorrupt
            If it is no array of numbers.
        """
        found: dict[str, ArrayView] = {}
        for name in ARRAY_NAMES[table]:
            values = _mapped(Path(f"{self._stems[table][row]}-{name}.npy"))
            found[name] = NpyView(name, values.dtype, values.shape, 0, "", values)
        return found

    def read(self, view: ArrayView) -> NDArray[Any]:
        """Return an array of `arrays`."""
        assert isinstance(view, NpyView), "of this directory"
        return view.values

    def require_intact(self) -> None:
        """Accept what was read: mappings of NumPy do not say what they could not read."""

    def _describe(self, row: int, one: _Dataset, split: str) -> None:
        """Fill the row of a section."""
        source, share = (
            self._tables["members"]["source"][row],
            one.split_matrix[SPLITS.index(split)],
        )
        if share is None:
            raise CacheCorrupt(f"{self._stems['sections'][row]}: describes no part of {split!r}")
        begin, end = sequence_range(share, int(self._tables["sources"]["sequences"][source]))
        arrays, section = self.arrays("sections", row), self._tables["sections"][row]
        section["source"], section["begin"], section["end"] = source, begin, end
        section["epochs"] = arrays["document_index"].shape[0] // max(end - begin, 1)
        section["samples"], section["order"] = arrays["shuffle_index"].shape[0], b"megatron"

    def _overlaps(self) -> bool:
        """Return whether samples overlap by a token, by a boundary between two sequences.

        One that ends with its sequence is written as the end of this, or as the begin of the next.
        """
        for row, stem in enumerate(self._stems["sections"]):
            views = self.arrays("sections", row)
            boundaries = self.read(views["sample_index"])
            documents = self.read(views["document_index"])
            lengths = open_idx(self._places[int(self.table("sections")["source"][row])]).lengths
            for begin in range(1, len(boundaries), CHUNK_BOUNDARIES):
                some = np.array(boundaries[begin : begin + CHUNK_BOUNDARIES], np.int64)
                if (some < 0).any() or (some[:, 0] >= len(documents)).any():
                    raise CacheCorrupt(f"{stem}: leads outside of itself")
                ends = lengths[documents[some[:, 0]]]
                if ((some[:, 1] == ends) & (ends > 0)).any():
                    return False
                if (some[:, 1] == 0).any():
                    return True
        return True


def is_stem(path: Path) -> bool:
    """Return whether a path is the start of the names of Megatron's files."""
    return not path.exists() and any(
        path.parent.glob(f"{glob.escape(path.name)}*{DESCRIPTION_SUFFIX}")
    )


def _find(path: Path, split: str) -> tuple[Path, _Description]:
    """Return the start of the names of a split's files, and their description."""
    is_directory = path.is_dir()
    parent = path if is_directory else path.parent
    known = {
        parent / found.name.removesuffix(DESCRIPTION_SUFFIX): _description(found)
        for found in sorted(parent.glob(f"*-{split}{DESCRIPTION_SUFFIX}"))
        if is_directory or found.name.startswith(path.name)
    }
    parts = {stem for one in known.values() if one.is_blend for stem in one.stems}
    tops = [stem for stem in known if stem not in parts]
    if not tops:
        if is_directory and any(path.glob("*.h5")):
            raise directory_error(path)
        raise NotReady(f"{path}: has no description of Megatron's of split {split!r}")
    if len(tops) > 1:
        names = ", ".join(stem.name for stem in tops[:5])
        raise ConfigError(
            f"{path}: has {len(tops)} data sets of split {split!r}; name one of them: {names}"
        )
    return tops[0], known[tops[0]]


def _description(path: Path) -> _Description:
    """Read a description, which has all fields that are needed."""
    try:
        found = json.loads(read_file(path, MAX_DESCRIPTION_BYTES))
        is_blend = found["class"] == BLEND_CLASS
        raw = found["datasets"] if is_blend else [found]
        datasets = msgspec.convert(raw, list[_Dataset])
        weights = msgspec.convert(found.get("weights"), list[float] | None)
        weights = weights or [math.nan] * len(datasets)
        if not len(weights) == len(datasets) > 0:
            raise ValueError("weights are not a number for each data set")
        # The MD5 of a dataset's description names its files.
        digests = [
            hashlib.md5(json.dumps(one, indent=4).encode(), usedforsecurity=False) for one in raw
        ]
        stems = [
            path.parent / f"{digest.hexdigest()}-{one['class']}-{one['index_split']}"
            for digest, one in zip(digests, raw, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CacheCorrupt(f"{path}: is not a description of Megatron's: {error!r}") from error
    return _Description(is_blend, datasets, stems, weights)


def _mapped(path: Path) -> NDArray[Any]:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such file") from error
    except (OSError, ValueError, EOFError) as error:
        raise CacheCorrupt(f"{path}: is no array of numbers: {error}") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise CacheCorrupt(f"{path}: is no array of whole numbers")
    return values
