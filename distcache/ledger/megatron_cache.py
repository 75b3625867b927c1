"""The `.npy` files that Megatron-Core wrote itself, read as a cache: of runs that are over.

A description (``<md5>-<class>-<split>-description.txt``) is the JSON of a dataset; that of a blend
holds those of its datasets, whose MD5s name their files: ``megatron_dataset.py`` and
``blended_dataset.py`` of megatron-core 0.16.1 to 0.19.2.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import ArrayView
from distcache.cache.corpus_places import Moves, located_moved
from distcache.cache.format import ARRAY_NAMES, BLENDS, MEMBERS, SECTIONS, SOURCES
from distcache.corpus import open_idx
from distcache.errors import CacheCorrupt, ConfigError, NotReady
from distcache.plan.config import SPLITS
from distcache.plan.sizes import sequence_range
from distcache.storage.files import read_file

END: Final = "-description.txt"
LONGEST: Final = 64 << 20  # bytes of a description
BLEND: Final = "BlendedDataset"
AT_ONCE: Final = 1 << 20  # boundaries of samples


@dataclass(frozen=True)
class NpyView(ArrayView):
    """An array in a `.npy` file."""

    path: Path = Path()


class MegatronCache:
    """The arrays of one split in a directory of Megatron's, with the face of a cache.

    Descriptions do not say whether samples overlap by a token; the arrays do.

    Parameters
    ----------
    path : Path
        Directory, or the start of the names of a blend or dataset in it.
    split : str
        "train", "valid" or "test".
    directory : str
        Directory to which the paths of corpora are relative.
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

    def __init__(self, path: Path, split: str, directory: str, moves: Moves = ()) -> None:
        self.path = path
        self.moves = moves
        stem, top = _find(path, split)
        self.key = stem.name.partition("-")[0]
        self._directory, self._relative_to = stem.parent, directory
        datasets = top["datasets"] if top["class"] == BLEND else [top]
        self.prefixes = list(dict.fromkeys(one["dataset_path"] for one in datasets))
        self.sequence_length = int(datasets[0]["sequence_length"])
        self.identity: dict[str, Any] = {
            "order": "megatron",
            "drop_last_partial_validation_sequence": True,
        }
        self._stems: dict[str, list[Path]] = {"sections": [], "blends": []}
        self._places = [located_moved(directory, prefix, moves) for prefix in self.prefixes]
        self._tables = {
            "sources": _sources(self._places),
            "sections": np.zeros(len(datasets), SECTIONS),
            "blends": np.zeros(0, BLENDS),
            "members": np.zeros(len(datasets), MEMBERS),
        }
        if top["class"] == BLEND:
            self._stems["blends"].append(stem)
        for row, one in enumerate(datasets):
            own = stem if top is one else _stem_of(stem.parent, one)
            self._stems["sections"].append(own)
            self._describe(row, one, split, top)
        self.add_extra_token = self._overlaps(datasets)

    @property
    def splits(self) -> list[str]:
        """The splits that it has files of; `of_split` reads another one."""
        return [split for split in SPLITS if any(self._directory.glob(f"*-{split}{END}"))]

    def of_split(self, split: str) -> MegatronCache:
        """Return the same of another split."""
        return MegatronCache(self._directory, split, self._relative_to, self.moves)

    def table(self, name: str) -> NDArray[Any]:
        """Return a table as `Cache.table` does, with what is known."""
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
            path = Path(f"{self._stems[table][row]}-{name}.npy")
            values = _mapped(path)
            found[name] = NpyView(name, values.dtype, values.shape, 0, "", path)
        return found

    def read(self, view: ArrayView) -> NDArray[Any]:
        """Map an array."""
        assert isinstance(view, NpyView), "of this directory"
        return _mapped(view.path)

    def require_intact(self) -> None:
        """Accept what was read: mappings of NumPy do not say what they could not read."""

    def _describe(self, row: int, one: dict[str, Any], split: str, top: dict[str, Any]) -> None:
        """Fill the rows of a dataset."""
        source = self.prefixes.index(one["dataset_path"])
        sequences = int(self._tables["sources"]["sequences"][source])
        share = one["split_matrix"][SPLITS.index(split)]
        begin, end = sequence_range(tuple(share), sequences)
        arrays = self.arrays("sections", row)
        samples = arrays["shuffle_index"].shape[0]
        section = self._tables["sections"][row]
        section["source"], section["begin"], section["end"] = source, begin, end
        section["epochs"] = arrays["document_index"].shape[0] // max(end - begin, 1)
        section["samples"], section["order"] = samples, b"megatron"
        member = self._tables["members"][row]
        member["split"], member["source"], member["section"] = split.encode(), source, row
        requested = one["num_samples"]
        member["requested"] = -1 if requested is None else requested
        member["blend"] = 0 if top["class"] == BLEND else -1
        member["weight"] = top["weights"][row] if top.get("weights") else np.nan

    def _overlaps(self, datasets: Sequence[dict[str, Any]]) -> bool:
        """Return whether samples overlap by a token, by a boundary between two sequences.

        One that ends with its sequence is written as the end of this, or as the begin of the next.
        """
        for row in range(len(datasets)):
            views = self.arrays("sections", row)
            boundaries, documents = (
                self.read(views[n]) for n in ("sample_index", "document_index")
            )
            source = int(self._tables["sections"]["source"][row])
            lengths = open_idx(self._places[source]).lengths
            for begin in range(1, len(boundaries), AT_ONCE):
                some = np.array(boundaries[begin : begin + AT_ONCE], np.int64)
                if (some < 0).any() or (some[:, 0] >= len(documents)).any():
                    raise CacheCorrupt(f"{self._stems['sections'][row]}: leads outside of itself")
                ends = lengths[documents[some[:, 0]]]
                if ((some[:, 1] == ends) & (ends > 0)).any():
                    return False
                if (some[:, 1] == 0).any():
                    return True
        return True


def is_stem(path: Path) -> bool:
    """Return whether a path is the start of the names of Megatron's files."""
    return not path.exists() and any(path.parent.glob(f"{glob.escape(path.name)}*{END}"))


def _find(path: Path, split: str) -> tuple[Path, dict[str, Any]]:
    """Return the start of the names of a split's files, and their description."""
    is_directory = path.is_dir()
    parent = path if is_directory else path.parent
    known = {
        found: _description(found)
        for found in sorted(parent.glob(f"*-{split}{END}"))
        if is_directory or found.name.startswith(path.name)
    }
    parts = {
        hashlib.md5(_text(one), usedforsecurity=False).hexdigest()
        for top in known.values()
        if top["class"] == BLEND
        for one in top["datasets"]
    }
    tops = [found for found in known if found.name.partition("-")[0] not in parts]
    if not tops:
        raise NotReady(f"{path}: has no description of Megatron's of split {split!r}")
    if len(tops) > 1:
        names = ", ".join(found.name.removesuffix(END) for found in tops[:5])
        raise ConfigError(
            f"{path}: has {len(tops)} data sets of split {split!r}; name one of them: {names}"
        )
    return parent / tops[0].name.removesuffix(END), known[tops[0]]


def _description(path: Path) -> dict[str, Any]:
    """Read a description, which has all fields that are needed."""
    try:
        found = json.loads(read_file(path, LONGEST))
        for one in found["datasets"] if found["class"] == BLEND else [found]:
            matrix = one["split_matrix"]
            sound = (
                isinstance(one["dataset_path"], str)
                and type(one["sequence_length"]) is int
                and type(one["num_samples"]) in (int, type(None))
                and len(matrix) == 3
                and all(share is None or len(share) == 2 for share in matrix)
            )
            if not sound:
                raise TypeError("a field is of another type")
        weights = found.get("weights") if found["class"] == BLEND else None
        if weights and not (
            len(weights) == len(found["datasets"])
            and all(type(weight) in (int, float) for weight in weights)
        ):
            raise TypeError("weights are not a number for each data set")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CacheCorrupt(f"{path}: is not a description of Megatron's: {error!r}") from error
    return dict(found)


def _text(one: dict[str, Any]) -> bytes:
    """Return the text of which the MD5 names a dataset's files."""
    return json.dumps(one, indent=4).encode()


def _stem_of(directory: Path, one: dict[str, Any]) -> Path:
    digest = hashlib.md5(_text(one), usedforsecurity=False).hexdigest()
    return directory / f"{digest}-{one['class']}-{one['index_split']}"


def _sources(places: Sequence[str]) -> NDArray[Any]:
    """Return the table of corpora, as they are now."""
    table = np.zeros(len(places), SOURCES)
    for row, place in enumerate(places):
        idx = open_idx(place)
        entry = table[row]
        entry["idx_size"], entry["sequences"] = idx.size, len(idx.lengths)
        entry["documents"] = len(idx.bounds) - 1
        entry["type_code"] = idx.type_code
    return table


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
