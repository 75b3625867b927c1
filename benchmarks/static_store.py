"""The fastest store of objects that a machine has: files of nginx, which compares ETags and ranges.

Debian's package `nginx-light`. It cannot be written to: `put_cache` lays out what
`distcache upload --corpora` would, and no signature is checked.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from distcache.cache.contents import read_contents
from distcache.cache.corpus_places import beside

CONFIG = """
daemon off;
worker_processes 1;
pid {work}/pid;
error_log {work}/log;
user root;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000000;
    client_body_temp_path {work}/bodies;
    server {{ listen 127.0.0.1:{port}; root {work}/objects; }}
}}
"""


class StaticStore:
    """A server of files on loopback.

    Parameters
    ----------
    directory : Path
        For its files.
    """

    def __init__(self, directory: Path) -> None:
        self._objects = directory / "objects"
        self._objects.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        config = directory / "nginx.conf"
        config.write_text(CONFIG.format(work=directory, port=port), encoding="utf-8")
        self._process = subprocess.Popen(["nginx", "-c", str(config)], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError("nginx does not start")

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()

    def environment(self) -> dict[str, str]:
        """Return how clients reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
        }

    def put_cache(self, cache: Path, url: str) -> None:
        """Put a cache to its URL, and its corpora beside it."""
        self._put(cache, url)
        contents = read_contents(str(cache))
        digests = contents.table("sources")["idx_digest"].tolist()
        for prefix, digest in zip(contents.prefixes, digests, strict=True):
            place = beside(url, prefix, digest.decode("ascii"))
            for suffix in (".idx", ".bin"):
                self._put(Path(prefix + suffix), place + suffix)

    def _put(self, source: Path, url: str) -> None:
        target = self._objects / url.removeprefix("s3://")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        os.utime(target, (1, 1))
