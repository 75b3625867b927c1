"""A real S3 server on loopback: SeaweedFS, from PyPI."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes import clean_environment
from tests.support.secrets import MARK

SCRIPTS = Path(sys.executable).parent
LIMIT = 60.0  # seconds to start
WRITER = (f"{MARK}-WRITER", f"{MARK}-SECRET-OF-WRITER")
READER = (f"{MARK}-READER", f"{MARK}-SECRET-OF-READER")


class Seaweed:
    """A server with a bucket ``lake``, and identities that may write, or only read.

    Parameters
    ----------
    directory : Path
        For its files.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        identities = [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}],
             "actions": actions}
            for (name, secret), actions in (
                (WRITER, ["Admin", "Read", "Write", "List"]),
                (READER, ["Read", "List"]),
            )
        ]  # fmt: skip
        # Everybody may read what is in the public bucket.
        identities.append({"name": "anonymous", "actions": ["Read:public", "List:public"]})
        config = directory / "identities.json"
        config.write_text(json.dumps({"identities": identities}))
        ports = _free_ports(4)
        self.endpoint = f"http://127.0.0.1:{ports[0]}"
        names = ("s3.port", "master.port", "volume.port", "filer.port")
        log = (directory / "log").open("wb")
        self._process = subprocess.Popen(
            [
                str(SCRIPTS / "weed"),
                "server",
                f"-dir={directory}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
                "-filer",
                "-s3",
                f"-s3.config={config}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-master.volumeSizeLimitMB=1024",
                "-volume.max=50",
                "-master.telemetry=false",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(),
        )
        log.close()
        self._wait(directory / "log")
        for bucket in ("lake", "public"):
            self.make_bucket(bucket)

    def environment(self, who: tuple[str, str] = WRITER) -> dict[str, str]:
        """Return what leads a client here, as somebody."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": who[0],
            "AWS_SECRET_ACCESS_KEY": who[1],
            "AWS_REGION": "us-east-1",
            "HOME": "/nonexistent",
        }

    def close(self) -> None:
        """End it; it would take half a minute by itself."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def make_bucket(self, name: str) -> None:
        """Make a bucket: the client of the project has no call for it."""
        request = _signed("PUT", self.endpoint, f"/{name}", self.environment())
        with urllib.request.urlopen(request, timeout=30):
            pass

    def _wait(self, log: Path) -> None:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            assert self._process.poll() is None, log.read_text()[-2000:]
            try:
                urllib.request.urlopen(f"{self.endpoint}/status", timeout=2).close()
            except urllib.error.HTTPError:
                return
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)
            else:
                return
        raise AssertionError(f"no answer: {log.read_text()[-2000:]}")


def _free_ports(count: int) -> list[int]:
    """Return ports that are free, also 10,000 above, where the server has others.

    All are below 32,768: from there on the kernel gives ports to clients, and one that asks
    whether the server answers would connect to itself.
    """
    found: list[int] = []
    candidate = 10_000 + int(time.monotonic_ns()) % 12_000
    while len(found) < count:
        candidate = 10_000 + (candidate - 9_999) % 12_000
        try:
            for port in (candidate, candidate + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        found.append(candidate)
    return found


def _signed(
    method: str, endpoint: str, path: str, environment: Mapping[str, str]
) -> urllib.request.Request:
    """Return a request with an AWS signature of version 4."""
    now = datetime.datetime.now(datetime.UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    host = endpoint.removeprefix("http://")
    body = hashlib.sha256(b"").hexdigest()
    heads = f"host:{host}\nx-amz-content-sha256:{body}\nx-amz-date:{stamp}\n"
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = f"{method}\n{path}\n\n{heads}\n{names}\n{body}"
    scope = f"{day}/us-east-1/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    key = f"AWS4{environment['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (day, "us-east-1", "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"{environment['AWS_ACCESS_KEY_ID']}/{scope}"
    return urllib.request.Request(
        f"{endpoint}{path}",
        method=method,
        headers={
            "x-amz-date": stamp,
            "x-amz-content-sha256": body,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, "
            f"Signature={signature}",
        },
    )
