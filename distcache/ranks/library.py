"""Say which MPI library mpi4py loads: ``python -m distcache.ranks.library``.

In a process of its own, since loading is for ever; MPI is not started.
"""

from __future__ import annotations

import sys

from mpi4py import rc

rc.initialize = False
from mpi4py import MPI  # noqa: E402

if __name__ == "__main__":
    sys.stdout.write(MPI.Get_library_version())
