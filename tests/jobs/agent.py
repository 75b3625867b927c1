"""Localize when told to, so that a test can kill it at any moment of the work.

    python -m tests.jobs.agent CACHE DIRECTORY

Writes a line when all is imported, and begins when it gets one.
"""

from __future__ import annotations

import sys

from distcache.megatron.names import Naming
from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions
from distcache.ranks.communicator import SerialCommunicator

print("ready", flush=True)  # noqa: T201
sys.stdin.readline()
options = LocalizeOptions(directory=sys.argv[2], naming=Naming())
localize(SerialCommunicator(), sys.argv[1], options)
