"""Commands are imported when they are asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distcache.cli.commands import COMMANDS, load


def run(code: str) -> None:
    """Run code in an interpreter of its own, which must end well."""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_help_imports_no_command() -> None:
    """Nor what commands need."""
    run(
        "import sys\n"
        "from distcache.cli.main import main\n"
        "sys.argv = ['distcache', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "names = {'numpy', 'h5py', 'torch', 'mpi4py', 'yaml', 'rich', 'distcache.cli.build'}\n"
        "assert not names & sys.modules.keys(), names & sys.modules.keys()\n"
    )


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("distcache.cli.build", "h5py torch mpi4py yaml rich"),
        ("distcache.cli.corpora", "h5py torch mpi4py yaml rich"),
        ("distcache.cli.node", "torch mpi4py rich"),
        ("distcache.train.open", "h5py torch mpi4py rich typer"),
    ],
)
def test_modules_import_no_more_than_they_need(module: str, unwanted: str) -> None:
    """What a rank imports is opened on a shared filesystem, by all ranks at once."""
    run(
        f"import sys, {module}\n"
        f"found = set('{unwanted}'.split()) & sys.modules.keys()\n"
        "assert not found, found\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there(name: str) -> None:
    """Every command is there, and its summary fits beside the names."""
    assert load(name).callback is not None or load(name).commands
    assert len(COMMANDS[name].summary) <= 64
    assert "OPENBLAS_NUM_THREADS" not in os.environ
