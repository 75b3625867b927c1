"""An MPI that does not use the node's network, or is not its launcher's, is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from distcache.launch.doctor.fabric import (
    Loaded,
    examine_network,
    judge_launcher,
    networks,
    parse_loaded,
    transports_of,
)

HYDRA = "HYDRA build details:\n    Version: 5.0.2\n"
OPEN = "mpirun (Open MPI) 4.1.4\n"


def node(root: Path, devices: dict[str, str], dev: Sequence[str] = ()) -> Path:
    """Write what the kernel says of a node's networks: devices and their drivers."""
    for name, driver in devices.items():
        place = root / "sys/class/infiniband" / name / "device"
        place.mkdir(parents=True)
        drivers = root / "drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (place / "driver").symlink_to(drivers)
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for name in dev:
        (root / "dev" / name).touch()
    return root


def library(root: Path, providers: list[str], compiled: list[str], uct: list[str]) -> Loaded:
    """Write an MPI's communication libraries."""
    (root / "libfabric").mkdir(parents=True)
    (root / "ucx").mkdir()
    for name in providers:
        (root / "libfabric" / f"lib{name}-fi.so").touch()
    for name in uct:
        (root / "ucx" / f"libuct_{name}.so.0").touch()
    content = b"".join(b"\0" + name.encode() + b"\0" for name in compiled)
    (root / "libfabric.so.1").write_bytes(b"ELF" + content)
    files = tuple(root / name for name in ("libmpi.so.12", "libfabric.so.1", "libuct.so.0"))
    return Loaded("MPICH Version: 5.0.2", files)


def test_networks_of_a_node(tmp_path: Path) -> None:
    """They are known by their devices and drivers."""
    devices = {"mlx5_0": "mlx5_core", "rdmap0s6": "efa", "hfi1_0": "hfi1", "mlx5_1": "mlx5_core"}
    root = node(tmp_path, devices, ["cxi0", "cxi1", "cxi_something"])
    assert networks(root) == {
        "Slingshot": ["cxi0", "cxi1"],
        "Omni-Path": ["hfi1_0"],
        "InfiniBand or RoCE": ["mlx5_0", "mlx5_1"],
        "EFA": ["rdmap0s6"],
    }
    assert networks(tmp_path / "none") == {}


def test_transports_of_libraries(tmp_path: Path) -> None:
    """Plugins are named by their files, what is compiled in by libfabric's own content."""
    loaded = library(tmp_path, ["psmx2", "efa"], ["cxi"], ["ib", "ib_mlx5", "cma"])
    assert transports_of(loaded.files) == {
        "libfabric psm2", "libfabric efa", "libfabric cxi", "UCX ib", "UCX ib_mlx5", "UCX cma",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "dev", "providers", "uct", "level", "said"),
    [
        ({}, ["cxi0"], ["efa"], ["ib"], "warning", "does not use Slingshot (cxi0)"),
        ({"mlx5_0": "mlx5_core"}, [], [], ["ib"], "ok", "can use InfiniBand or RoCE (mlx5_0)"),
        ({"mlx5_0": "mlx5_core"}, [], [], [], "warning", "--no-binary=mpi4py"),
        ({"hfi1_0": "hfi1"}, [], ["psmx2"], [], "ok", "can use Omni-Path"),
        ({}, [], [], [], "ok", "no InfiniBand, Slingshot, Omni-Path or EFA is here"),
    ],
)
def test_an_mpi_without_the_network(
    devices: dict[str, str],
    dev: list[str],
    providers: list[str],
    uct: list[str],
    level: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a warning that names the library, the network, and what to do."""
    root = node(tmp_path / "node", devices, dev)
    loaded = library(tmp_path / "mpi", providers, [], uct)
    monkeypatch.setattr("distcache.launch.doctor.fabric.parse_loaded", lambda _: loaded)
    finding = next(examine_network(root))
    assert finding.level == level
    assert said in finding.text
    assert "libmpi.so.12" in finding.text


def test_the_mpi_of_this_environment() -> None:
    """What mpi4py loads here is read, with its file, and its launcher fits."""
    findings = list(examine_network())
    assert all(finding.level == "ok" for finding in findings[-1:])
    assert "mpi4py loads MPICH (/" in findings[0].text
    assert "as mpi4py's library" in findings[-1].text


@pytest.mark.parametrize(
    ("version", "library_version", "level"),
    [
        (HYDRA, "MPICH Version: 5.0.2", "ok"),
        (HYDRA, "Intel(R) MPI Library 2021.11", "ok"),
        (HYDRA, "Open MPI v4.1.4", "problem"),
        (OPEN, "Open MPI v4.1.4", "ok"),
        (OPEN, "MPICH Version: 5.0.2", "problem"),
        ("something else", "MPICH Version: 5.0.2", "ok"),
    ],
)
def test_the_launcher(version: str, library_version: str, level: str) -> None:
    """One of another MPI would start ranks that do not know of each other."""
    loaded = parse_loaded(f"{library_version}\n----\n/opt/lib/libmpi.so.40\n")
    finding = judge_launcher("/usr/bin/mpiexec", version, loaded)
    assert finding.level == level
    if level == "problem":
        assert "every rank would be alone" in finding.text
        assert "/opt/lib/libmpi.so.40" in finding.text
