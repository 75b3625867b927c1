"""Where the corpora of a cache are: at the configuration's paths, or beside a cache in a bucket."""

from __future__ import annotations

import os
import re
from typing import Final

import xxhash

from distcache.cache.contents import Contents
from distcache.storage import is_url, located

__all__ = ["beside", "corpus_places", "corpus_stem"]

DIRECTORY: Final = "corpora"  # beside a cache in a bucket


def corpus_stem(prefix: str, idx_digest: str, own: str = "") -> str:
    """Return a name for a corpus that tells it from others.

    Parameters
    ----------
    prefix : str
        Its absolute path, or its URL: equal indices may belong to different tokens.
    idx_digest : str
        Of its index.
    own : str
        What the `.bin` beside it holds, if it is the name's own; where it is a link, nothing.
    """
    identity = " ".join([idx_digest, prefix, *([own] if own else [])])
    digest = xxhash.xxh3_64_hexdigest(identity.encode("utf-8", "surrogateescape"))
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(prefix))[:100].strip(".-")
    return f"{readable or 'corpus'}-{digest}"


def beside(cache: str, prefix: str, idx_digest: str) -> str:
    """Return where `distcache upload --corpora` puts a corpus: beside the cache in the bucket."""
    return f"{cache.rpartition('/')[0]}/{DIRECTORY}/{corpus_stem(prefix, idx_digest)}"


def corpus_places(contents: Contents) -> list[str]:
    """Return the prefixes of a cache's corpora: absolute paths, or URLs.

    A cache in a bucket does not look for the paths of the machine that it was built on: what were
    paths there is beside it.
    """
    path = str(contents.path)
    digests = contents.table("sources")["idx_digest"].tolist()
    return [
        beside(path, prefix, digest.decode("ascii", "replace"))
        if is_url(path) and not is_url(prefix)
        else located(prefix)
        for prefix, digest in zip(contents.prefixes, digests, strict=True)
    ]
