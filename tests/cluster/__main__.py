"""Play with the test cluster: ``python -m tests.cluster up DIR``, and ``down DIR``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.settings import Settings

action, directory = sys.argv[1:]
cluster = Cluster(Settings(Path(directory)))
if action == "up":
    cluster.up()
    sys.stdout.write(f"export SLURM_CONF={cluster.settings.slurm_conf}\n")
else:
    cluster.down()
