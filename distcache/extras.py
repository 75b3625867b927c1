"""The extras, the libraries of each, and the command that installs a missing one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from distcache.errors import ConfigError

DISTRIBUTION: Final = "distcache-megatron"
EXTRA_OF: Final = {
    "mpi4py": "mpi",
    "torch": "train",
    "submitit": "slurm",
    "tokenizers": "ingest",
    "sentencepiece": "ingest",
    "tiktoken": "ingest",
    "pyarrow": "ingest",
    "huggingface_hub": "ingest",
    "gigatoken": "fast",
    "zstandard": "mds",
    "cramjam": "mds",
    "obstore": "s3",
}
"""The extra of each library that distcache imports only when it is used."""


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra to this installation, from the same place (PEP 610)."""
    from importlib import metadata  # noqa: PLC0415  rarely needed

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        found: dict[str, Any] = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        found = {}
    url = str(found.get("url", ""))
    if "dir_info" in found and url.startswith("file://"):
        editable = "-e " if found["dir_info"].get("editable") else ""
        return f'pip install {editable}"{unquote(url.removeprefix("file://"))}[{extra}]"'
    if "vcs_info" in found:
        revision = found["vcs_info"]
        url = f"{revision.get('vcs')}+{url}@{revision.get('commit_id')}"
    place = f" @ {url}" if url else ""
    return f'pip install "{DISTRIBUTION}[{extra}]{place}"'


@contextlib.contextmanager
def needing(why: str = "") -> Iterator[None]:
    """Turn a failed import of a library of an extra into the command that installs it.

    Parameters
    ----------
    why : str
        Feature that needs the library, for the message.

    Raises
    ------
    ConfigError
        If the library is missing; an import of anything else fails as before.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRA_OF:
            raise
        command = how_to_install(EXTRA_OF[name])
        needed = f", which {why} needs" if why else ""
        raise ConfigError(f"{name} is not installed{needed}: {command}") from None
