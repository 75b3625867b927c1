"""Where the corpora of a cache are: at the configuration's paths, or beside a cache in a bucket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import xxhash

from distcache.cache.contents import Contents
from distcache.errors import ConfigError
from distcache.storage.url import is_url, located, located_in

PREFIX_VARIABLE: Final = "DISTCACHE_PREFIX"
Moves = tuple[tuple[str, str], ...]
"""Pairs of from and to: where directories of corpora were when a cache was built, and are now."""

DIRECTORY: Final = "corpora"  # beside a cache in a bucket


def corpus_stem(prefix: str, idx_digest: str, own: str = "") -> str:
    """Return a name that distinguishes a corpus from others.

    Parameters
    ----------
    prefix : str
        Absolute path or URL of the corpus: equal indices may belong to different tokens.
    idx_digest : str
        Digest of the corpus's index.
    own : str
        Content of the `.bin` that is stored under this name; empty where it is a link.
    """
    identity = " ".join([idx_digest, prefix, *([own] if own else [])])
    digest = xxhash.xxh3_64_hexdigest(identity.encode("utf-8", "surrogateescape"))
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(prefix))[:100].strip(".-")
    return f"{readable or 'corpus'}-{digest}"


def beside(cache: str, prefix: str, idx_digest: str) -> str:
    """Return where `distcache upload --corpora` puts a corpus: beside the cache in the bucket."""
    return f"{cache.rpartition('/')[0]}/{DIRECTORY}/{corpus_stem(prefix, idx_digest)}"


def corpus_places(contents: Contents) -> list[str]:
    """Return the prefixes of a cache's corpora, where they are now: absolute paths, or URLs.

    A cache in a bucket does not look for the paths of the machine that it was built on: what were
    paths there is beside it.
    """
    path = str(contents.path)
    rename = prefix_renamer(contents.moves)
    digests = contents.table("sources")["idx_digest"].tolist()
    return [
        rename(beside(path, prefix, digest.decode("ascii", "replace")))
        if is_url(path) and not is_url(prefix)
        else rename(located(rename(prefix)))
        for prefix, digest in zip(contents.prefixes, digests, strict=True)
    ]


def prefix_renamer(pairs: Sequence[tuple[str, str]]) -> Callable[[str], str]:
    """Return the function that replaces the start of a path, by the longest pair that fits.

    Parameters
    ----------
    pairs : sequence of (str, str)
        Old and new directories; a pair applies to a path that equals the old one or is
        below it.
    """
    longest_first = sorted(pairs, key=lambda pair: -len(pair[0]))
    whole = dict(pairs)

    def rename(prefix: str) -> str:
        if prefix in whole:
            return whole[prefix]
        plain = _plain(prefix) if longest_first else prefix
        for start, target in longest_first:
            bare = start.rstrip("/")
            if plain == bare or plain.startswith(bare + "/"):
                return target.rstrip("/") + plain[len(bare) :]
        return prefix

    return rename


def moves_from(words: Iterable[str], environment: Mapping[str, str]) -> Moves:
    """Return the moves that options ``FROM=TO`` say, and else those of the environment.

    Parameters
    ----------
    words : iterable of str
        Values of ``--prefix``.
    environment : mapping of str to str
        Environment; ``DISTCACHE_PREFIX`` may have several pairs, separated by commas.

    Raises
    ------
    ConfigError
        If one is no pair.
    """
    given = list(words)
    name = "--prefix"
    if not given:
        name, value = PREFIX_VARIABLE, environment.get(PREFIX_VARIABLE, "")
        given = [word for word in value.split(",") if word]
    pairs = [tuple(word.split("=", 1)) for word in given]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ConfigError(f"{name} {' '.join(given)}: expected FROM=TO")
    return moves_of((pair[0], pair[1]) for pair in pairs)


def moves_of(pairs: Iterable[tuple[str | Path, str | Path]]) -> Moves:
    """Return moves whose directories are without ``~``, ``..`` and doubled slashes."""
    return tuple((_plain(str(before)), _plain(str(now))) for before, now in pairs)


def _plain(word: str) -> str:
    if is_url(word):
        return word
    plain = os.path.normpath(os.path.expanduser(word))  # noqa: PTH111  paths are text
    return f"/{plain.lstrip('/')}" if plain.startswith("/") else plain


def moves_between(before: Sequence[str], now: Sequence[str]) -> Moves:
    """Return the fewest moves that turn prefixes into others: their equal last parts are cut off.

    Parameters
    ----------
    before, now : sequence of str
        Prefixes of the same corpora, in the same order.
    """
    found: dict[tuple[str, str], None] = {}
    for old, new in zip(before, now, strict=True):
        olds, news = old.split("/"), new.split("/")
        while len(olds) > 1 and len(news) > 1 and olds[-1] == news[-1]:
            olds.pop()
            news.pop()
        if old != new:
            found["/".join(olds), "/".join(news)] = None
    return tuple(found)


def located_moved(directory: str, prefix: str, moves: Moves) -> str:
    """Return where a corpus is now, whose prefix is relative to a directory, or a URL."""
    rename = prefix_renamer(moves)
    return rename(located_in(directory, rename(prefix)))
