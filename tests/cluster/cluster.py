"""A real Slurm cluster on one machine: a head with controller and accounting, and nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

from tests.cluster.daemons import detach, listens, run, stop, succeeds
from tests.cluster.gluster import SharedFilesystem
from tests.cluster.node import BRIDGES, Node
from tests.cluster.settings import LOCAL, Settings, hosts, slurm_conf, slurmdbd_conf
from tests.support.waiting import wait_until

DIRECTORIES = ("etc", "run", "log", "state", "munge", "mysql", "spool", "disk")


class Cluster:
    """The cluster; `up` starts it, `down` leaves nothing of it.

    Parameters
    ----------
    settings : Settings
        Sizes and places.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.shared = SharedFilesystem(settings)
        self.nodes = [Node(settings, name) for name in settings.names]

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need."""
        return {"SLURM_CONF": str(self.settings.slurm_conf)}

    def up(self) -> None:
        """Start everything, and wait until all nodes are idle."""
        self.down()  # what another run has left has the same names
        self._configure()
        os.environ.update(self.environment)
        self._start_munge()
        self._start_database()
        self._start_network()
        self._start_controller()
        self.shared.start()
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            self._mount(node)
        self.wait_for_nodes()

    def down(self) -> None:
        """Stop everything."""
        for node in self.nodes:
            node.kill()
        self.shared.stop()
        for name in ("slurmctld", "slurmdbd", "mysqld", "munged"):
            stop(self.settings.pid_file(name))
        for node in self.nodes:
            node.disconnect()
        for bridge in BRIDGES:
            subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)
        os.environ.pop("SLURM_CONF", None)
        with contextlib.suppress(OSError):
            LOCAL.rmdir()

    def node(self, name: str) -> Node:
        """Return a node by its name."""
        return self.nodes[self.settings.names.index(name)]

    def restart(self, node: Node) -> None:
        """Give a node its power back, and wait until Slurm uses it."""
        node.start()
        self._mount(node)
        self.wait_for_nodes()

    def reconfigure(self, settings: Settings) -> None:
        """Start Slurm anew, with other settings; the filesystems and the accounting continue."""
        self.settings = settings
        for node in self.nodes:
            node.kill()
        stop(settings.pid_file("slurmctld"))
        settings.slurm_conf.write_text(slurm_conf(settings))
        self._start_controller()
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            self._mount(node)
        self.wait_for_nodes()

    def wait_for_nodes(self, limit: float = 90.0) -> None:
        """Wait until all nodes are idle."""
        logs = [
            self.settings.log("slurmctld"),
            *(self.settings.log(f"slurmd.{node.name}") for node in self.nodes),
        ]
        wait_until(lambda: self._idle() == len(self.nodes), "idle nodes", limit, logs)

    def _idle(self) -> int:
        return run("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N %T").count(" idle\n")

    def _mount(self, node: Node) -> None:
        wait_until(node.is_up, node.name, logs=[self.settings.log(f"init.{node.name}")])
        self.shared.mount_on(node)

    def _configure(self) -> None:
        base = self.settings.base
        for name in DIRECTORIES:
            shutil.rmtree(base / name, ignore_errors=True)
            (base / name).mkdir(parents=True)
        base.chmod(0o755)  # munge's socket is everybody's
        etc = base / "etc"
        self.settings.slurm_conf.write_text(slurm_conf(self.settings))
        (etc / "slurmdbd.conf").write_text(slurmdbd_conf(self.settings))
        (etc / "slurmdbd.conf").chmod(0o600)
        # Looking for a version by itself fails where no cgroup filesystem is mounted.
        (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        # Open MPI's plugin makes a directory per step, which nodes of one machine cannot share.
        (etc / "mpi.conf").write_text("PMIxCliTmpDirBase=/local\n")
        (etc / "hosts").write_text(hosts(self.settings))

    def _start_controller(self) -> None:
        log = self.settings.log("slurmctld")
        run("slurmctld")
        wait_until(lambda: succeeds("scontrol", "ping"), "slurmctld", logs=[log])

    def _start_munge(self) -> None:
        base, etc = self.settings.base, self.settings.base / "etc"
        key = etc / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        run(
            "munged",
            f"--key-file={key}",
            f"--socket={self.settings.munge_socket}",
            f"--pid-file={self.settings.pid_file('munged')}",
            f"--log-file={base}/munge/munged.log",
            f"--seed-file={base}/munge/munge.seed",
        )
        wait_until(lambda: succeeds("munge", "-S", self.settings.munge_socket, "-n"), "munged")

    def _start_database(self) -> None:
        base, port = self.settings.base, self.settings.port + 3
        socket = base / "run" / "mysql.sock"
        run(
            *("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={base}/mysql"),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        )
        words = [
            *("mariadbd", "--no-defaults", "--user=root", f"--datadir={base}/mysql"),
            *(f"--socket={socket}", "--bind-address=127.0.0.1", f"--port={port}"),
            *("--innodb-buffer-pool-size=128M", "--innodb-lock-wait-timeout=900"),
            *("--innodb-flush-log-at-trx-commit=0", f"--log-error={self.settings.log('mysqld')}"),
        ]
        detach(words, self.settings.pid_file("mysqld"), {})
        client = ("--no-defaults", "-S", socket, "-u", "root")
        wait_until(lambda: succeeds("mariadb-admin", *client, "ping"), "mariadbd")
        users = ("'slurm'@'127.0.0.1'", "'slurm'@'localhost'")
        made = "".join(f"create user {user} identified by 'slurm';" for user in users)
        allowed = "".join(f"grant all on slurm_acct_db.* to {user};" for user in users)
        run("mariadb", *client, "-e", f"create database slurm_acct_db; {made} {allowed}")
        run("slurmdbd")
        accounting = self.settings.port + 2
        wait_until(
            lambda: listens("127.0.0.1", accounting),
            "slurmdbd",
            logs=[self.settings.log("slurmdbd")],
        )
        run("sacctmgr", "-i", "add", "cluster", "lab")

    def _start_network(self) -> None:
        for bridge, address in zip(
            BRIDGES, (self.settings.head_address, self.settings.server), strict=True
        ):
            run("ip", "link", "add", bridge, "type", "bridge")
            run("ip", "addr", "add", f"{address}/24", "dev", bridge)
            run("ip", "link", "set", bridge, "up")
        for node in self.nodes:
            node.connect()
