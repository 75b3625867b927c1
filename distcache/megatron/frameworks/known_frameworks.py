"""The table of frameworks, and what is asked of the one that a naming names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from distcache.cache.contents import Contents
from distcache.errors import ConfigError
from distcache.megatron.frameworks.automodel import AUTOMODEL
from distcache.megatron.frameworks.core import MEGATRON_CORE
from distcache.megatron.frameworks.framework import Framework
from distcache.megatron.frameworks.maxtext import MAXTEXT
from distcache.megatron.frameworks.mindspeed import MINDSPEED
from distcache.megatron.names import FrameworkName, NamedArrays, Naming

FRAMEWORKS: Final[dict[FrameworkName, Framework]] = {
    "megatron": MEGATRON_CORE,
    "automodel": AUTOMODEL,
    "maxtext": MAXTEXT,
    "mindspeed": MINDSPEED,
}


def framework_named(text: str) -> FrameworkName:
    """Return the name of a framework that a text is.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    for name in FRAMEWORKS:
        if name == text:
            return name
    raise ConfigError(f"--for {text}: is no known framework; known: {', '.join(FRAMEWORKS)}")


def framework_of(naming: Naming) -> Framework:
    """Return the framework that a naming names.

    Raises
    ------
    ConfigError
        If releases are named of one that is not Megatron-Core, or ``--fim-data``.
    """
    framework = FRAMEWORKS[naming.reader]
    if framework is not MEGATRON_CORE and (naming.releases or naming.fim):
        raise ConfigError(
            f"--megatron RELEASE and --fim-data are Megatron-Core's, and not of {framework.title}"
        )
    return framework


def named_files(
    cache: Contents,
    rename: Callable[[str], str] = str,
    naming: Naming = Naming(),  # noqa: B008  frozen
) -> Iterator[NamedArrays]:
    """Yield everything that a framework would look for, each name once.

    Parameters
    ----------
    cache : Contents
        The cache.
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.
    naming : Naming
        The framework, and what else decides the names.

    Raises
    ------
    ConfigError
        If the tokenizer is not known, or its name in a release.
    """
    return framework_of(naming).files(cache, rename, naming)


def require_readable(
    cache: Contents, naming: Naming, rename: Callable[[str], str], here: Sequence[str]
) -> None:
    """Refuse a cache that a framework would not find, or would read in another way.

    Parameters
    ----------
    cache : Contents
        The cache.
    naming : Naming
        Names the framework.
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.
    here : sequence of str
        Path of each corpus, under which its `.idx` can be read now.

    Raises
    ------
    ConfigError
        If it is so; every reason is named.
    """
    problems = list(framework_of(naming).refusals(cache, rename, here))
    if problems:
        raise ConfigError(*(f"{cache.path}: {problem}" for problem in problems))
