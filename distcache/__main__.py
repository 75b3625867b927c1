"""``python -m distcache``: the command line, with this very interpreter."""

from __future__ import annotations

from distcache.cli.main import main

if __name__ == "__main__":
    main()
