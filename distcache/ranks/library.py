"""Say which MPI library mpi4py loads: ``python -m distcache.ranks.library``.

In a process of its own, since loading is for ever; MPI is not started.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Write what the library says of itself."""
    from mpi4py import rc  # noqa: PLC0415

    rc.initialize = False
    from mpi4py import MPI  # noqa: PLC0415

    sys.stdout.write(MPI.Get_library_version())


if __name__ == "__main__":
    main()
