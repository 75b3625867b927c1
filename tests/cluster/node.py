"""A node: namespaces of its own with a hostname, an address, a disk and a slurmd."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.cluster.daemons import detach, run, stop
from tests.cluster.settings import HOSTS_FILE, LOCAL, Settings
from tests.support.processes import DISTCACHE
from tests.support.waiting import wait_until

__all__ = ["BRIDGES", "ETHERNET", "STORAGE", "Node", "slow_down"]

CARDS = (ETHERNET, STORAGE) = ("eth0", "san0")
BRIDGES = ("lab-eth", "lab-san")
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
        self._pid_file = settings.pid_file(f"holder.{name}")

    def connect(self) -> None:
        """Give it network cards: for all else, and for the filesystem."""
        space, number = self.namespace, self._settings.number(self.name)
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        for bridge, card, network in zip(
            BRIDGES, CARDS, (self._settings.network, self._settings.storage), strict=True
        ):
            device = f"{card}-{self.name}"
            run("ip", "link", "add", device, "type", "veth", "peer", card, "netns", space)
            run("ip", "link", "set", device, "master", bridge, "up")
            run("ip", "-n", space, "addr", "add", f"{network}.{number}/24", "dev", card)
            run("ip", "-n", space, "link", "set", card, "up")

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
            "DISTCACHE": DISTCACHE,
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
        """Remove its network cards."""
        for card in CARDS:
            words = ["ip", "link", "del", f"{card}-{self.name}"]
            subprocess.run(words, check=False, capture_output=True)
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
        """Return whether commands can be run on it."""
        try:
            self.run("test", "-d", LOCAL / "lost+found")
        except (OSError, IndexError, RuntimeError):
            return False
        return True

    def received(self, card: str = STORAGE) -> int:
        """Return the bytes that a network card has received."""
        return int(self.run("cat", f"/sys/class/net/{card}/statistics/rx_bytes"))

    def slow_down(self, card: str, rate: str, *, both: bool = False) -> None:
        """Let a network card receive, or send as well, no more than, for example, ``100mbit``."""
        slow_down(f"{card}-{self.name}", rate)
        if both:
            self.run(*_limits(card, rate))


def slow_down(device: str, rate: str) -> None:
    """Let a device of this machine send no more than so much; empty for all it can."""
    run(*_limits(device, rate))


def _limits(device: str, rate: str) -> list[str]:
    if not rate:
        return ["tc", "qdisc", "del", "dev", device, "root"]
    words = ["tc", "qdisc", "replace", "dev", device, "root"]
    return [*words, "tbf", "rate", rate, "burst", "256k", "latency", "200ms"]
