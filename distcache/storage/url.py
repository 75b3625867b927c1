"""Names of objects: ``s3://bucket/key`` and ``msc://profile/path``, as Megatron spells them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from distcache.errors import ConfigError

SCHEMES: Final = ("s3", "msc")
MARK: Final = "://"
URL: Final = re.compile("[a-z][a-z0-9+.-]*:/")  # Path joins slashes


class Address(NamedTuple):
    """What a URL names."""

    scheme: str  # one of `SCHEMES`
    root: str  # the bucket, or the profile of the Multi-Storage Client
    key: str  # key without a slash at its ends; empty for the root itself

    def __str__(self) -> str:
        return f"{self.scheme}{MARK}{self.root}" + (f"/{self.key}" if self.key else "")


def is_url(path: str | Path) -> bool:
    """Return whether a path is a URL; ``Path`` cannot hold one, since it joins slashes."""
    return MARK in str(path)


def address_of(url: str) -> Address:
    """Parse a URL.

    Raises
    ------
    ConfigError
        If it is not of a known scheme, or has parts that could hold a secret: a user, a query or a
        fragment.
    """
    scheme, _, rest = url.partition(MARK)
    root, _, key = rest.partition("/")
    key = key.rstrip("/")
    shown = f"{scheme}{MARK}..."  # what is wrong with it may be a secret
    if scheme not in SCHEMES:
        known = " or ".join(f"{known}{MARK}" for known in SCHEMES)
        raise ConfigError(f"{shown}: expected a path, or a URL that begins with {known}")
    if any(mark in rest for mark in "?#\0\\") or any(mark in root for mark in "@:"):
        raise ConfigError(f"{shown}: expected a bucket and a key, without user, query or fragment")
    if not url.isprintable():
        raise ConfigError(f"{shown}: expected printable text in UTF-8")
    if not root or (key and not all(part not in ("", ".", "..") for part in key.split("/"))):
        raise ConfigError(f"{url}: expected a bucket and a key without empty or relative parts")
    return Address(scheme, root, key)


def located(path: str | Path) -> str:
    """Return a path as an absolute one, or a URL in its one spelling.

    Raises
    ------
    ConfigError
        As `address_of`.
    """
    return str(address_of(str(path))) if is_url(path) else os.path.abspath(path)


def located_in(directory: str, path: str) -> str:
    """Return a path that is relative to a directory, or a URL, which is relative to nothing."""
    return str(address_of(path)) if is_url(path) else os.path.join(directory, path)


def require_file(path: str | Path, what: str, instead: str) -> None:
    """Refuse a URL where only a file can be.

    Raises
    ------
    ConfigError
        With what to do instead.
    """
    if is_url(path):
        raise ConfigError(f"{what} {located(path)}: cannot be in a bucket; {instead}")


def path_only(value: Any) -> Any:
    """Refuse a URL where only a path will do.

    Raises
    ------
    ConfigError
        If it is one, or one of them is.
    """
    for word in value if isinstance(value, list) else [value]:
        if URL.match(str(word)):
            raise ConfigError(f"{word}: cannot be in a bucket; give a path")
    return value
