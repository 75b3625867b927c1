"""The extras: which has a missing library, and names that need one, imported when they are used."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
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
    "transformers": "chat",
    "jinja2": "chat",
    "zstandard": "mds",
    "cramjam": "mds",
    "obstore": "s3",
    "botocore": "s3",
    "matplotlib": "report",
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


def importing(package: str, places: Mapping[str, tuple[str, str]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` (PEP 562), which imports a name when it is asked for.

    Parameters
    ----------
    package : str
        Name of the package.
    places : mapping of str to (str, str)
        The module and the attribute of each name; an empty attribute is the module itself.

    Raises
    ------
    ConfigError
        When a name is used whose library is not installed.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        with needing(f"{package}.{name}"):
            found = importlib.import_module(module)
            return getattr(found, attribute) if attribute else found

    return find


def imported(place: str) -> Any:
    """Import what is named ``module:name``, as tables name functions whose imports are costly."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
