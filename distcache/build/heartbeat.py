"""The sign of life of a build, for jobs that wait for it."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

from distcache.build.workspace import Workspace
from distcache.cache.life import INTERVAL, show
from distcache.progress import Stopwatch

__all__ = ["Heartbeat"]


class Heartbeat:
    """Renews a workspace's sign of life every two seconds, from a thread, while it is entered."""

    def __init__(self, workspace: Workspace, watch: Stopwatch) -> None:
        self._workspace = workspace
        self._watch = watch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            # A full disk must not end the build here; where it does, its error says so.
            with contextlib.suppress(OSError):
                show(self._workspace.path, self._watch.current, self._watch.fraction)
            if self._ended.wait(INTERVAL):
                return
