"""The signal that ends this process's work, also where a library loses the exception for it."""

from __future__ import annotations

from distcache.errors import BuildInterrupted

__all__ = ["interrupt", "require_uninterrupted"]

_interruption: BuildInterrupted | None = None


def interrupt(message: str) -> None:
    """Raise the error for a signal; only for the first, since others must not end the cleanup.

    Raises
    ------
    BuildInterrupted
        With the message.
    """
    global _interruption  # noqa: PLW0603  of the process
    if _interruption is None:
        _interruption = BuildInterrupted(message)
        raise _interruption


def require_uninterrupted() -> None:
    """Raise the error again: code in C or Rust may have made another one of it.

    Raises
    ------
    BuildInterrupted
        If there was a signal.
    """
    if _interruption is not None:
        raise _interruption
