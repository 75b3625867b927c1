"""Which tests the release that is on the path can judge."""

import importlib.util

from tests.peers.megatron import RELEASE
from tests.peers.olmo import PACKER

collect_ignore = []
if RELEASE == "0.16":  # Megatron's training is in the wheels from 0.17 on
    collect_ignore += ["test_training.py", "test_provider.py", "test_documented.py"]
if importlib.util.find_spec("megatron.bridge") is None:
    collect_ignore += ["test_bridge.py"]
if importlib.util.find_spec("streaming") is None:
    collect_ignore += ["test_streaming.py"]
if not PACKER.exists():
    collect_ignore += ["test_olmo.py"]
