"""Which libcurl makes the connections of native requests, and which authorities it trusts."""

from __future__ import annotations

import functools
import importlib.util
import ssl
from pathlib import Path
from typing import Final

OF_THE_SYSTEM: Final = "libcurl.so.4"
# Debian's other one, which before libcurl 8 cannot be told authorities: it has no TLS here.
WITH_GNUTLS: Final = "libcurl-gnutls.so.4"
BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)


def curl_libraries() -> list[str]:
    """Return libraries, of which the first that can be loaded is used.

    The system's comes first: it gets security updates. Images of containers often have none;
    the wheels of ``pycurl`` carry one.
    """
    found = importlib.util.find_spec("pycurl")
    places: list[Path] = []
    if found is not None and found.origin is not None:
        origin = Path(found.origin)
        for directory in (origin.parent / "pycurl.libs", origin.parent.parent / "pycurl.libs"):
            places += sorted(directory.glob("libcurl*.so*"))
    return [OF_THE_SYSTEM, *map(str, places), WITH_GNUTLS]


@functools.cache
def system_authorities() -> bytes:
    """Return the system's certificates of authorities in PEM; empty where Python knows none."""
    for path in (ssl.get_default_verify_paths().cafile, *BUNDLES):
        if path and Path(path).is_file():
            return Path(path).read_bytes()
    return b""
