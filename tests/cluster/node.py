"""A node: namespaces of its own with a hostname, an address, a disk and a slurmd."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.cluster.daemons import detach, run, stop, wait_until
from tests.cluster.settings import HOSTS_FILE, LOCAL, Settings

__all__ = ["Node"]

INIT = Path(__file__).with_name("node_init.sh")


class Node:
    """One node of the cluster.

    Parameters
    ----------
    settings : Settings
        Of the cluster.
    name : str
        Of the node.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self.name = name
        self.namespace = f"lab-{name}"
        self.device = f"v-{name}"  # the head's end of its cable
        self._pid_file = settings.pid_file(f"holder.{name}")

    def connect(self, bridge: str) -> None:
        """Give it a network card with its address."""
        address = self._settings.address(self.name)
        space = self.namespace
        run("ip", "netns", "add", space)
        run("ip", "link", "add", self.device, "type", "veth", "peer", "eth0", "netns", space)
        run("ip", "link", "set", self.device, "master", bridge, "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", space, "link", "set", device, "up")

    def start(self) -> None:
        """Switch it on, with an empty disk unless it has one already."""
        settings = self._settings
        (settings.base / "spool" / self.name).mkdir(exist_ok=True)
        disk = settings.base / "disk" / f"{self.name}.img"
        if not disk.exists():
            with open(disk, "wb") as stream:
                stream.truncate(settings.disk << 20)
            run("mkfs.ext4", "-q", "-F", "-m", "0", disk)
        LOCAL.mkdir(exist_ok=True)
        environment = {
            "NODE": self.name,
            "DISK": str(disk),
            "LOCAL": str(LOCAL),
            "SHARED": str(settings.shared),
            "SHARED_MEMORY": f"{settings.shared_memory}m",
            "HOSTS": str(settings.base / "etc" / "hosts"),
            "HOSTS_FILE": str(HOSTS_FILE),
            "LOG": str(settings.log(f"init.{self.name}")),
            "SLURM_CONF": str(settings.slurm_conf),
        }
        kinds = ["--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words = ["ip", "netns", "exec", self.namespace, "unshare", *kinds, "bash", str(INIT)]
        detach(words, self._pid_file, environment)
        wait_until(self._pid_file.exists, self.name)

    def kill(self) -> None:
        """Take its power away: all processes in it are gone."""
        stop(self._pid_file, signal.SIGKILL)

    def disconnect(self) -> None:
        """Remove its network card."""
        subprocess.run(["ip", "link", "del", self.device], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)

    def words(self, *command: str | Path) -> list[str]:
        """Return the words that run a command on the node."""
        holder = self._pid_file.read_text().strip()
        first = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0]
        return ["nsenter", "-t", first, "-u", "-m", "-n", "-p", "-i", "-r", *map(str, command)]

    def run(self, *command: str | Path) -> str:
        """Run a command on the node, and return what it writes."""
        return run(*self.words(*command))

    def is_up(self) -> bool:
        """Tell whether commands can be run on it."""
        try:
            self.run("test", "-d", LOCAL / "lost+found")
        except (OSError, IndexError, RuntimeError):
            return False
        return True

    def received(self) -> int:
        """Return the bytes that its network card has received."""
        return int(self.run("cat", "/sys/class/net/eth0/statistics/rx_bytes"))
