"""Names that a package offers, imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from distcache.extras import needing


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
