"""A launcher that is not of mpi4py's MPI is named."""

from __future__ import annotations

import pytest

from distcache.launch.doctor.machine import examine_launcher, judge_launcher

HYDRA = "HYDRA build details:\n    Version: 5.0.2\n"
OPEN = "mpirun (Open MPI) 4.1.4\n"


def test_the_mpi_of_this_environment() -> None:
    """Its launcher fits."""
    finding = examine_launcher()
    assert finding.level == "ok"
    assert "as mpi4py's library" in finding.text


@pytest.mark.parametrize(
    ("version", "library", "level"),
    [
        (HYDRA, "MPICH Version: 5.0.2", "ok"),
        (HYDRA, "Intel(R) MPI Library 2021.11", "ok"),
        (HYDRA, "Open MPI v4.1.4", "problem"),
        (OPEN, "Open MPI v4.1.4", "ok"),
        (OPEN, "MPICH Version: 5.0.2", "problem"),
        ("something else", "MPICH Version: 5.0.2", "ok"),
    ],
)
def test_the_launcher(version: str, library: str, level: str) -> None:
    """One of another MPI would start ranks that do not know of each other."""
    finding = judge_launcher("/usr/bin/mpiexec", version, library)
    assert finding.level == level
    if level == "problem":
        assert "every rank would be alone" in finding.text
