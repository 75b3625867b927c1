"""Run distcache's command line as another user: python -m tests.support.as_user UID WORDS...

All that may be imported is, beforehand: the interpreter may lie where that user may not look.
"""

from __future__ import annotations

import contextlib
import encodings
import importlib
import os
import pkgutil
import sys

import rich

import distcache


def become(user: int) -> None:
    """Import all, then give up this process's user, groups and capabilities."""
    for package in (distcache, encodings, rich):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.umask(0o022)


if __name__ == "__main__":
    become(int(sys.argv[1]))
    sys.argv = ["distcache", *sys.argv[2:]]
    from distcache.cli.main import main

    main()
