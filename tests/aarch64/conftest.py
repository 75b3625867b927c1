"""`scripts/aarch64` runs these, with a judge."""

import os

collect_ignore = [] if "DISTCACHE_JUDGE" in os.environ else ["test_blends.py"]
