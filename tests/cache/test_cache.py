"""A cache is opened with one mapping, checked, and never trusted further than its digests."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from distcache.cache import Cache, open_cache, skeleton
from distcache.cache import format as file_format
from distcache.cache.digests import verify_cache
from distcache.cache.format import HEADER_SIZE, TABLES, Header, TablePlace
from distcache.cache.inspect import inspect_document
from distcache.errors import CacheCorrupt, DistcacheError, NotReady
from distcache.plan import layout
from tests.support import here
from tests.support.odd import odd


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    path = tmp_path / "copy.h5"
    shutil.copy(built, path)
    path.chmod(0o644)
    return path


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1 << bit]))


def verify(path: Path) -> None:
    """Open a cache and compare all blocks."""
    verify_cache(open_cache(path))


def interesting_offsets(cache: Cache) -> list[int]:
    """Return the first and last bytes of every region, and many at random."""
    header = cache.header
    edges = {0, HEADER_SIZE - 1, HEADER_SIZE, header.tables_begin - 1, header.tables_begin}
    edges.add(header.file_size - 1)
    for name, place in header.tables.items():
        edges |= {place.offset, place.offset + max(place.rows * TABLES[name].itemsize - 1, 0)}
    for table in ("sections", "blends"):
        for row in range(len(cache.table(table))):
            for view in cache.arrays(table, row).values():
                edges |= {view.offset, view.offset + view.nbytes - 1, view.offset + view.nbytes}
    choose = random.Random(1)
    edges |= {choose.randrange(header.file_size) for _ in range(300)}
    edges |= {choose.randrange(HEADER_SIZE) for _ in range(100)}
    return sorted(offset for offset in edges if offset < header.file_size)


def test_any_changed_byte_is_caught(built: Path, copied: Path) -> None:
    """By verify wherever it is; by opening where it is in what opening reads."""
    cache = open_cache(built)
    choose = random.Random(3)
    for offset in interesting_offsets(cache):
        bit = choose.randrange(8)
        flip(copied, offset, bit)
        with pytest.raises(CacheCorrupt):
            verify(copied)
        if offset < HEADER_SIZE or offset >= cache.header.tables_begin:
            with pytest.raises(CacheCorrupt):
                open_cache(copied)
        flip(copied, offset, bit)
    verify(copied)


def test_any_other_length_is_caught(built: Path, copied: Path) -> None:
    """Shorter or longer by anything."""
    size = built.stat().st_size
    for length in (0, 1, HEADER_SIZE - 1, HEADER_SIZE, size // 2, size - 1, size + 1, size + 4096):
        os.truncate(copied, length)
        with pytest.raises(CacheCorrupt):
            open_cache(copied)
        shutil.copy(built, copied)


def test_files_that_are_no_cache(tmp_path: Path, corpora: dict[str, str]) -> None:
    """A message that names the file, and no traceback."""
    (tmp_path / "random").write_bytes(random.Random(1).randbytes(10_000))
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "random", tmp_path / "directory", Path(corpora["plain"] + ".idx")):
        with pytest.raises(DistcacheError, match=path.name):
            open_cache(path)
    with pytest.raises(NotReady, match="build it first"):
        open_cache(tmp_path / "none")


def test_a_header_is_read_as_it_was_packed() -> None:
    """And a digest that fits does not make its numbers trusted."""
    tables = {name: TablePlace(8192, 0) for name in TABLES}
    header = Header("ab" * 32, 10_000, 8192, bytes(range(16)), tables)
    assert Header.unpack(header.pack(), "x", 10_000) == header
    for bad in (
        Header("ab" * 32, 10_000, 20_000, bytes(16), tables),
        Header("ab" * 32, 10_000, 8192, bytes(16), {**tables, "sources": TablePlace(8192, 2**60)}),
        Header("ab" * 32, 10_000, 8192, bytes(16), {**tables, "blocks": TablePlace(2**63, 1)}),
        Header("ab" * 32, 10_000, 8192, bytes(16), {"sources": TablePlace(8192, 0)}),
        Header("ab" * 32, 9_999, 8192, bytes(16), tables),
    ):
        with pytest.raises(CacheCorrupt):
            Header.unpack(bad.pack(), "x", 10_000)


@pytest.mark.parametrize("count", [0, 7, 9, 1000, 2**32 - 1])
def test_a_header_with_another_number_of_tables(count: int) -> None:
    """It is refused before the page ends, though its digest fits."""
    tables = {name: TablePlace(8192, 0) for name in TABLES}
    page = bytearray(Header("ab" * 32, 10_000, 8192, bytes(16), tables).pack()[:-16])
    page[20:24] = count.to_bytes(4, "little")
    page += xxhash.xxh3_128_digest(bytes(page))
    with pytest.raises(CacheCorrupt, match="tables"):
        Header.unpack(bytes(page), "x", 10_000)


@pytest.mark.parametrize(
    ("place", "message"), [(16, "format version is 9"), (112, "of another version")]
)
def test_a_header_of_another_version(place: int, message: str) -> None:
    """It is refused by its version, or by its sizes."""
    tables = {name: TablePlace(8192, 0) for name in TABLES}
    page = bytearray(Header("ab" * 32, 10_000, 8192, bytes(16), tables).pack()[:-16])
    page[place : place + 4] = (9).to_bytes(4, "little")
    page += xxhash.xxh3_128_digest(bytes(page))
    with pytest.raises(CacheCorrupt, match=message):
        Header.unpack(bytes(page), "x", 10_000)


def test_sizes_of_plan_and_format_fit() -> None:
    """Ranks write whole leaves, and HDF5 aligns as the layout does."""
    assert layout.ALIGNMENT == skeleton.ALIGNMENT
    assert layout.STRIPE % file_format.LEAF_SIZE == 0
    assert file_format.BLOCK_SIZE % file_format.LEAF_SIZE == 0


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("members", "source", 2**40),
        ("members", "section", 99),
        ("members", "blend", 7),
        ("members", "split", b"\xff"),
        ("sections", "source", 5),
        ("sections", "document_index_type", b"|O"),
        ("sections", "document_index_type", b"<i8"),
        ("sections", "sample_index_type", b"<i2"),
        ("sections", "shuffle_index_type", b"<i4"),
        ("sections", "sample_index_rows", 2**62),
        ("sections", "shuffle_index_offset", 2**63),
        ("identity", None, ord("x")),
        ("naming", None, ord("1")),
        ("prefixes", None, 0xFF),
    ],
)
def test_tables_are_not_trusted_because_their_digest_fits(
    copied: Path, table: str, column: str | None, value: int | bytes
) -> None:
    """A row that names what does not exist is a corrupt cache, and no traceback."""
    cache = open_cache(copied)
    header, begin = cache.header, cache.header.tables_begin
    tables = bytearray(copied.read_bytes()[begin:])
    place = header.tables[table]
    rows = np.frombuffer(tables, TABLES[table], place.rows, place.offset - begin)
    (rows if column is None else rows[column])[:1] = value
    forged = msgspec.structs.replace(header, tables_digest=xxhash.xxh3_128_digest(tables))
    with open(copied, "r+b") as stream:
        stream.write(forged.pack())
        stream.seek(begin)
        stream.write(tables)
    with pytest.raises(CacheCorrupt):
        inspect_document(open_cache(copied))


def test_views_are_read_only_and_not_copied(built: Path) -> None:
    """All arrays lie in one mapping of one open file."""
    before = set(Path("/proc/self/fd").iterdir())
    cache = open_cache(built)
    arrays = [
        cache.read(view)
        for row in range(len(cache.table("sections")))
        for view in cache.arrays("sections", row).values()
    ]
    assert not any(array.flags.writeable or array.flags.owndata for array in arrays)
    assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1
    maps = Path("/proc/self/maps").read_text().count(str(built))
    assert maps == 1


def test_opening_costs_the_same_for_many_corpora(corpora: dict[str, str], tmp_path: Path) -> None:
    """One open file and one mapping, however many sections."""
    fields: dict[str, Any] = {
        "sequence_length": 16,
        "split": "1",
        "samples": {"train": 5000, "valid": 0, "test": 0},
        "blend": [{"path": corpora["tiny"], "weight": 1 + number / 7} for number in range(100)],
    }
    path = here.build(fields, tmp_path).path
    cache = open_cache(path)
    assert len(cache.table("sections")) >= 40
    assert Path("/proc/self/maps").read_text().count(path) == 1


LAID_OUT = """
import errno, sys
from distcache.cache.format import DatasetPlace
from distcache.cache.skeleton import front_bytes
begin = 1 << 18
places = [
    DatasetPlace(f"group{n // 3}", f"array{n}", "i4", (1024,), begin + 4096 * n) for n in range(300)
]
places.append(DatasetPlace("group", "small", "i4", (3,), begin + 4096 * 300))
try:
    print(len(front_bytes(sys.argv[1], begin, places)))
except OSError as error:
    print(errno.errorcode[error.errno], error.filename == sys.argv[1])
"""


@pytest.mark.parametrize("call", range(1, 7))
def test_a_disk_that_is_full_as_the_file_is_laid_out(
    call: int, library: Path, tmp_path: Path
) -> None:
    """It is an error of the system, and HDF5 does not end the process."""
    struck = tmp_path / "struck"
    (tmp_path / "disk").mkdir()
    words = odd(library, f"strike=full:write:{call}:/disk/ struck={struck}")
    done = subprocess.run(
        [sys.executable, "-c", LAID_OUT, str(tmp_path / "disk" / "layout")],
        env=os.environ | words,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    expected = "ENOSPC True\n" if struck.exists() else f"{1 << 18}\n"
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr
    assert struck.exists() or call > 1
    assert list((tmp_path / "disk").iterdir()) == []
