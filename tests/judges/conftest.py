"""Which tests the release of Megatron-Core that comes first on the path can judge."""

from tests.support.needs import is_due, is_installed

collect_ignore = []
if not is_due("0.17"):  # Megatron's training is in the wheels from there on
    collect_ignore += ["test_training.py", "test_provider.py", "test_documented.py"]
if not is_installed("megatron.bridge"):  # `scripts/judges bridge-0.6.2` has it
    collect_ignore += ["test_bridge.py"]
