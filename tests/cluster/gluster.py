"""GlusterFS between the nodes: a real network filesystem, one server and a client per machine."""

from __future__ import annotations

import shutil
import subprocess

from tests.cluster.daemons import run, stop, succeeds
from tests.cluster.node import Node
from tests.cluster.settings import Settings
from tests.support.waiting import wait_until

VOLUME = "distcache"


class SharedFilesystem:
    """The filesystem that the head serves and all nodes mount.

    Parameters
    ----------
    settings : Settings
        Of the cluster.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._brick = settings.base / "brick"

    def start(self) -> None:
        """Serve it, and mount it on the head."""
        settings = self._settings
        self._brick.mkdir()
        settings.shared.mkdir(exist_ok=True)
        pid_file, log = settings.pid_file("glusterd"), settings.log("glusterd")
        run("glusterd", f"--log-file={log}", f"--pid-file={pid_file}", "-L", "WARNING")
        wait_until(lambda: succeeds(*_gluster("volume", "list")), "glusterd", logs=[log])
        self._forget()
        source = f"{settings.server}:{self._brick}"
        run(*_gluster("volume", "create", VOLUME, source, "force"))
        run(*_gluster("volume", "start", VOLUME))
        run(*self._mount("head"))

    def mount_on(self, node: Node) -> None:
        """Mount it on a node."""
        node.run(*self._mount(node.name))

    def forget_on(self, node: Node) -> None:
        """Mount it anew on a node, which then has none of its bytes in memory."""
        node.run("umount", self._settings.shared)
        self.mount_on(node)

    def stop(self) -> None:
        """Unmount it on the head, whose server then ends."""
        shared = str(self._settings.shared)
        subprocess.run(["umount", "-l", shared], check=False, capture_output=True)
        self._forget()
        stop(self._settings.pid_file("glusterd"))
        shutil.rmtree(self._brick, ignore_errors=True)

    def _mount(self, where: str) -> list[str]:
        log = self._settings.log(f"gluster.{where}")
        options = f"direct-io-mode=disable,log-file={log}"
        source = f"{self._settings.server}:/{VOLUME}"
        return ["mount", "-t", "glusterfs", "-o", options, source, str(self._settings.shared)]

    def _forget(self) -> None:
        succeeds(*_gluster("volume", "stop", VOLUME, "force"))
        succeeds(*_gluster("volume", "delete", VOLUME))


def _gluster(*words: str) -> list[str]:
    return ["gluster", "--mode=script", *words]
