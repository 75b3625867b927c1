"""The inputs of an ingest, in which order, and the options for reading them."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec

from distcache.corpus.receipt import receipt_path
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.ingest.readers.formats import (
    FORMATS,
    SUFFIXES,
    TEXT_FORMATS,
    TOKEN_FORMATS,
    paths_beside,
)
from distcache.option import Option
from distcache.storage.threads import decodable
from distcache.storage.units import parse_positive_size

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
OnError = Literal["fail", "skip"]


class Group(msgspec.Struct, frozen=True, array_like=True):
    """A row group of Parquet, or a batch of Arrow: its rows, and the column's bytes in memory."""

    rows: int
    nbytes: int


class Input(msgspec.Struct, frozen=True):
    """A file to read."""

    path: str  # path as it was given, or as it was found
    size: int  # bytes
    changed: int  # modification time, in nanoseconds since 1970
    format: str  # format by its name, or as it was given for all files
    compression: str | None = None  # ``gzip``, ``zstd``, ``bz2`` or ``xz``, from its name
    groups: tuple[Group, ...] = ()  # row groups of a Parquet file, batches of an Arrow file
    # suffix, size and time of each file beside an array of token ids (`SourceFormat.beside`)
    beside: tuple[tuple[str, int, int], ...] = ()
    named: str = ""  # name of what it is a copy of: an object, or standard input

    @property
    def name(self) -> str:
        """Its name in receipts."""
        return self.named or self.path

    @property
    def is_table(self) -> bool:
        """Whether it has groups of rows, and columns."""
        return FORMATS[self.format].cut == "groups"


def find_inputs(
    words: Sequence[str],
    formats: Sequence[str],
    given: str | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> list[Input]:
    """Find input files by paths, patterns with ``*``, ``?`` or ``[]``, and directories.

    Parameters
    ----------
    words : sequence of str
        Arguments of the command line. Patterns and directories (recursive) yield files in the order
        of the paths, without hidden files; each file is read once.
    formats : sequence of str
        Accepted formats.
    given : str or None
        The format of all files, whatever their names; then directories yield all their files, or
        those that the format names.
    names : mapping of str to str
        Names of what files are copies of, by their paths.

    Returns
    -------
    list of Input
        Inputs without row groups.

    Raises
    ------
    NotReady
        If an argument matches nothing.
    ConfigError
        If a file has none of the formats.
    """
    problems: list[str] = []
    missing: list[str] = []
    found: dict[tuple[int, int], Input] = {}
    known = suffixes_of(formats, given)
    for word in words:
        paths = list(_expand(word, known))
        if not paths:
            missing.append(_nothing(word, known, given))
        for path in paths:
            entry, identity = _as_input(path, given, names.get(path, ""))
            if entry is None or entry.format not in formats:
                problems.append(
                    f"{path}: expected a regular file with {_suffix_list(known)}; name the format "
                    "of other files with --format"
                    if known is not None and given is None
                    else f"{path}: expected a regular file, uncompressed unless it has lines"
                )
            elif identity not in found:
                found[identity] = entry
    if missing:
        raise NotReady(*missing)
    if problems:
        raise ConfigError(*problems)
    beside = set(files_beside([entry.path for entry in found.values()], given))
    return [entry for entry in found.values() if entry.path not in beside]


def files_beside(paths: Sequence[str], given: str | None = None) -> list[str]:
    """Return where the files beside inputs would be; `given` is the format of all."""
    kinds = [(path, given or SUFFIXES.get(_split(path)[0], "")) for path in paths]
    return [other for path, kind in kinds if kind for other in paths_beside(path, kind)]


def suffixes_of(formats: Sequence[str], given: str | None) -> set[str] | None:
    """Return the suffixes of files that a directory yields; None if it yields all."""
    if given is not None:
        return set(FORMATS[given].given) or None
    return {suffix for suffix, kind in SUFFIXES.items() if kind in formats}


def is_read(name: str, known: set[str] | None) -> bool:
    """Return whether a directory yields a file, by its path below it."""
    hidden = any(part.startswith((".", "_")) for part in name.split("/"))
    if hidden or name.endswith((receipt_path(""), "/")):
        return False
    return known is None or _split(name)[0] in known


def require_unchanged(inputs: Sequence[Input]) -> None:
    """Refuse inputs that have changed since they were found.

    Raises
    ------
    CorpusError
        Naming all of them.
    """
    problems = []
    for entry in inputs:
        try:
            found = os.stat(entry.path)
        except OSError as error:
            problems.append(f"{entry.path}: cannot be read any more: {error.strerror}")
            continue
        as_found = (entry.size, entry.changed), entry.beside
        if ((found.st_size, found.st_mtime_ns), _beside(entry.path, entry.format)) != as_found:
            problems.append(f"{entry.path}: has changed while it was read; run again")
    if problems:
        raise CorpusError(*problems)


def _expand(word: str, known: set[str] | None) -> Iterator[str]:
    if os.path.isdir(word):
        yield from _below(word, known)
    elif os.path.lexists(word):
        yield word
    elif glob.has_magic(word):
        for path in sorted(glob.glob(word, recursive=True)):
            yield from _below(path, known) if os.path.isdir(path) else [path]


def _below(directory: str, known: set[str] | None) -> Iterator[str]:
    """Yield the files below a directory, following links, but each directory once."""
    seen = {_identity(directory)}
    for parent, names, files in os.walk(directory, onerror=_refuse, followlinks=True):
        visible = sorted(name for name in names if not name.startswith((".", "_")))
        names.clear()
        for name in visible:
            identity = _identity(os.path.join(parent, name))
            if identity not in seen:
                seen.add(identity)
                names.append(name)
        yield from (os.path.join(parent, name) for name in sorted(files) if is_read(name, known))


def _refuse(error: OSError) -> None:
    raise NotReady(f"{error.filename}: cannot be read: {error.strerror}") from error


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _split(path: str) -> tuple[str, str | None]:
    """Return the suffix of a path and its compression; an empty suffix for a receipt."""
    if path.endswith(receipt_path("")):
        return "", None
    stem = Path(path)
    compression = COMPRESSIONS.get(stem.suffix.lower())
    if compression is not None:
        stem = stem.with_suffix("")
    return stem.suffix.lower(), compression


def _as_input(path: str, given: str | None, named: str) -> tuple[Input | None, tuple[int, int]]:
    """Return a file as an input, or None if it cannot be one, and its identity."""
    suffix, compression = _split(path)
    kind = given or SUFFIXES.get(suffix)
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{path!r}: its name is not UTF-8; rename it") from None
    try:
        found = os.stat(path)
    except OSError as error:
        raise NotReady(f"{path}: cannot be read: {error.strerror}") from error
    if (
        kind is None
        or not stat.S_ISREG(found.st_mode)
        or (compression and not FORMATS[kind].can_be_compressed)
    ):
        return None, (0, 0)
    beside = _beside(path, kind)
    size, changed = found.st_size, found.st_mtime_ns
    entry = Input(path, size, changed, kind, compression, beside=beside, named=named)
    return entry, (found.st_dev, found.st_ino)


def _beside(path: str, kind: str) -> tuple[tuple[str, int, int], ...]:
    """Return suffix, size and time of each file beside an input that is there."""
    there = []
    for suffix in FORMATS[kind].beside:
        with contextlib.suppress(OSError):
            found = os.stat(path + suffix)
            there.append((suffix, found.st_size, found.st_mtime_ns))
    return tuple(there)


def _nothing(word: str, known: set[str] | None, given: str | None) -> str:
    if os.path.isdir(word):
        if known is None:
            return f"{word}: has no file"
        other = "by a pattern" if given else "with --format"
        what = "other files" if given else "the format of other files"
        return f"{word}: has no file with {_suffix_list(known)}; name {what} {other}"
    return f"{word}: matches no file" if glob.has_magic(word) else f"{word}: no such file"


def _suffix_list(known: set[str]) -> str:
    packed = f"[{'|'.join(COMPRESSIONS)}]"
    packable = {suffix for suffix, kind in SUFFIXES.items() if FORMATS[kind].can_be_compressed}
    texts = [f"{suffix}{packed}" if suffix in packable else suffix for suffix in sorted(known)]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """The options of both text and token shards.

    The order of all fields is part of what a corpus is made from (`Origin.made_from`).
    """

    token_type: Annotated[
        Literal["auto", "megatron", "u8", "u16", "i32", "i64"],
        Option("auto is the smallest that holds the vocabulary."),
    ] = "auto"
    on_error: Annotated[OnError, Option("End at the first invalid row, or skip invalid rows.")] = (
        "fail"
    )
    shard_size: Annotated[
        int | None,
        Option(
            "Begin another corpus, OUT-00001 and so on, at a document boundary before a .bin "
            "exceeds this, for example 512GB.",
            parse=parse_positive_size,
        ),
    ] = None
    empty: Annotated[
        Literal["drop", "keep"],
        Option(
            "Drop rows without tokens, or keep each as a document without sequences, as "
            "Megatron's preprocessing does."
        ),
    ] = "drop"
    format: str | None = None  # of all files, whatever their names


@decodable
class TextOptions(Common, frozen=True, kw_only=True):
    """The options of an ingest of text."""

    text_key: Annotated[str, Option("Field of JSON lines, or column of Parquet files.")] = "text"
    messages: Annotated[
        str | None,
        Option(
            "Field or column of conversations. The tokenizer's chat template turns each into text.",
            metavar="FIELD",
        ),
    ] = None
    loss: Annotated[
        Literal["marked", "all"],
        Option(
            "Tokens of conversations that have a loss: what the chat template encloses in "
            "{% generation %}, or all."
        ),
    ] = "marked"
    append_eod: Annotated[
        bool, Option("End each document with the tokenizer's end-of-document token.")
    ] = False
    eod_once: Annotated[
        bool, Option("Append no end-of-document token where a text ends with it already.")
    ] = False
    sentences: Annotated[
        Literal["no", "lines"],
        Option("Whether each line of a text is a separate sequence.", "--split-sentences"),
    ] = "no"
    documents: Annotated[
        Literal["file", "line"],
        Option("Whether a .txt file, or each of its lines, is a document.", "--txt-documents"),
    ] = "file"
    longest: Annotated[
        int,
        Option(
            "A longer document is an error: tokenizers need much more memory.",
            "--max-document-size",
            parse_positive_size,
            "64M",
        ),
    ] = 64 << 20
    format: Annotated[
        str | None,
        Option(
            "Format of all files, whatever their names; suffixes .gz, .zst, .bz2 and .xz of lines "
            "still count.",
            shown="from each name",
            choices=TEXT_FORMATS,
        ),
    ] = None

    @property
    def field(self) -> str:
        """Field or column of the texts or conversations."""
        return self.text_key if self.messages is None else self.messages

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of the inputs; plain text has no fields."""
        return tuple(name for name in TEXT_FORMATS if name != "txt" or self.messages is None)


@decodable
class TokenOptions(Common, frozen=True, kw_only=True):
    """The options of an ingest of token shards."""

    column: Annotated[str, Option("Column or field of token ids, lists of integers.")] = "input_ids"
    format: Annotated[
        str | None,
        Option(
            "Format of all files, whatever their names; raw are arrays of ids, in a directory the "
            "files with .npy, .ds or .bin.",
            shown="from each name",
            choices=TOKEN_FORMATS,
        ),
    ] = None
    dtype: Annotated[
        Literal["uint8", "uint16", "uint32", "int32", "int64"] | None,
        Option(
            "Type of arrays without a header. Their documents end where NAME.index says, or at "
            "each --eod."
        ),
    ] = None
    vocabulary: Annotated[
        int | None,
        Option("Token ids must be below it; sets the token type.", "--vocab-size", least=1),
    ] = None
    eod: Annotated[
        int | None, Option("End each document with this token, if it does not.", least=0)
    ] = None
    masks: Annotated[
        Literal["keep", "ignore"],
        Option(
            "Make a loss mask of loss_mask, assistant_masks, completion_mask and labels, or ignore "
            "them. Padding by attention_mask is left out."
        ),
    ] = "keep"

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of the inputs."""
        return TOKEN_FORMATS
