"""Endpoints and credentials of buckets, from the environment and from AWS's own files.

No value of a credential is kept in anything that is shown: `Access` has the function that returns
them, and a text that says where they are from.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from distcache.errors import ConfigError
from distcache.extras import needing
from distcache.storage.files import MAX_TEXT_BYTES, read_file
from distcache.storage.url import Address
from distcache.storage.watchdog import Stalled, run_with_watchdog

REREAD: Final = timedelta(minutes=5)  # files of credentials, which others may renew
PATIENCE: Final = 60.0  # seconds for a program or a server that gives credentials
KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SESSION_VARIABLES: Final = ("AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION", "AWS_SECURITY_TOKEN")
SESSION: Final = (*KEYS, *SESSION_VARIABLES)
ACCOUNT_BITS: Final = 0x7FFFFFFFFF80
# Of these, the client asks the machine itself.
MACHINE_VARIABLES: Final = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._~/-]*)?")
VISIBLE: Final = re.compile(r"[\x21-\x7e]*")
PROFILE_CREDENTIALS: Final = (
    "aws_access_key_id",
    "credential_process",
    "credential_source",
    "login_session",
    "role_arn",
    "sso_session",
    "sso_start_url",
)

Credentials = Callable[[], dict[str, Any]]
"""Returns ``access_key_id``, ``secret_access_key``, ``token`` and ``expires_at``."""


@dataclass(frozen=True)
class Access:
    """How to reach a bucket."""

    bucket: str  # name of the bucket; a directory, if the kind is ``file``
    prefix: str = ""  # prefix of every key; empty, or without slashes at its ends
    kind: str = "s3"  # ``s3``, ``gcs``, ``azure`` or ``file``
    # address of the store; by default the provider's own
    endpoint: str | None = None
    region: str | None = None
    unsigned: bool = False  # whether requests have no signature, as of public buckets
    certificates: bytes | None = field(default=None, repr=False)  # further roots to trust, in PEM
    source: str = "the environment"  # source of the credentials, for messages
    # returns them; None if the client finds them
    credentials: Credentials | None = field(default=None, repr=False)

    def __reduce__(self) -> Any:
        raise TypeError("what reaches a bucket is never pickled")


def environment_access(address: Address, environment: Mapping[str, str] = os.environ) -> Access:
    """Return how the environment, and the profile that it names, reach a bucket.

    As for AWS's own tools: keys of the environment come first, then those of the profile
    (AWS_PROFILE or AWS_DEFAULT_PROFILE, else ``default``) in ``~/.aws``, then what the machine
    itself offers.

    Raises
    ------
    ConfigError
        If the profile does not exist, or needs what is not installed.
    """
    for name in (*KEYS, "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        if not VISIBLE.fullmatch(environment.get(name, "")):
            raise ConfigError(f"{name}: has blanks, line breaks or other characters of no key")
    profile = _read_profile(environment)
    endpoint = _first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    region = _first(environment, "AWS_REGION", "AWS_DEFAULT_REGION") or profile.get("region")
    bundle = _first(environment, "AWS_CA_BUNDLE") or profile.get("ca_bundle")
    unsigned = environment.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes")
    source, credentials = _credentials(environment, profile)
    return Access(
        bucket=address.root,
        endpoint=checked_endpoint(
            endpoint or profile.get("endpoint_url"), "AWS_ENDPOINT_URL, or endpoint_url in ~/.aws"
        ),
        region=region,
        unsigned=unsigned,
        certificates=None if bundle is None else _read_certificates(bundle),
        source="requests without a signature" if unsigned else source,
        credentials=None if unsigned else credentials,
    )


def identity_of(environment: Mapping[str, str]) -> str:
    """Return an identity of how an environment reaches stores, which reveals nothing of it.

    Ranks of one job may have sessions of their own of one role: the account counts for them.
    """
    named = {
        name: value
        for name, value in environment.items()
        if (
            name.startswith(("AWS_", "MSC_", "GOOGLE_", "AZURE_")) and name not in SESSION_VARIABLES
        )
        or name == "HOME"
    }
    if account := _account_of(named.get("AWS_ACCESS_KEY_ID", "")):
        named["AWS_ACCESS_KEY_ID"] = account
        named.pop("AWS_SECRET_ACCESS_KEY", None)
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def session_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the temporary credentials of an environment: secrets; empty if it has none."""
    if not _account_of(environment.get("AWS_ACCESS_KEY_ID", "")):
        return {}
    return {name: environment[name] for name in SESSION if environment.get(name)}


def _account_of(key: str) -> str:
    """Return the account of a key of a session, which its ID has; empty for all others.

    AWS's temporary keys begin with ASIA; the account's number is in bits 1 to 40 of the rest, which
    is in base 32.
    """
    if not key.startswith("ASIA"):
        return ""
    try:
        rest = base64.b32decode(key[4:])
    except ValueError:
        return ""
    return str((int.from_bytes(rest[:6], "big") & ACCOUNT_BITS) >> 7)


def checked_endpoint(url: Any, where: str) -> str | None:
    """Return an endpoint without what could be a secret, or surprises its client.

    Raises
    ------
    ConfigError
        If it is not ``http://`` or ``https://``, a host, and perhaps a port and a path.
    """
    if url is None:
        return None
    if not isinstance(url, str) or not ENDPOINT.fullmatch(url):
        raise ConfigError(
            f"{where}: expected an endpoint such as https://host:9000, without user and query"
        )
    try:
        urlsplit(url).port  # noqa: B018  it is parsed now
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return url


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _read_certificates(path: str) -> bytes:
    try:
        return read_file(path, MAX_TEXT_BYTES)
    except OSError as error:
        raise ConfigError(f"AWS_CA_BUNDLE {path}: cannot be read: {error.strerror}") from error


def _credentials(
    environment: Mapping[str, str], profile: Mapping[str, str]
) -> tuple[str, Credentials | None]:
    """Return where credentials are from, and the function that returns them."""
    named = _named_profile(environment)
    if all(environment.get(name) for name in KEYS):
        return "AWS_ACCESS_KEY_ID of the environment", None
    if given := next((name for name in PROFILE_CREDENTIALS if profile.get(name)), None):
        label = f"{given} of profile {named or 'default'!r} of ~/.aws"
        return label, functools.partial(_of_profile, environment, label)
    if named:
        raise ConfigError(f"AWS_PROFILE={named}: has no credentials in ~/.aws")
    if any(environment.get(name) for name in MACHINE_VARIABLES):
        return "the identity of this container", None
    return "the environment, ~/.aws and this machine's own identity", None


def _read_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the profile, of both of AWS's files; credentials come first.

    Raises
    ------
    ConfigError
        If a profile is named that does not exist, or a file is not of this form.
    """
    files = _files(environment)
    named = _named_profile(environment)
    if not any(map(os.path.exists, files)) and not named:
        return {}
    try:
        with needing("profiles of ~/.aws"):
            session = _session(environment)
            found: dict[str, str] = session.get_scoped_config()
            services = session.full_config.get("services", {}).get(found.get("services"), {})
            found |= {k: v for k, v in services.get("s3", {}).items() if k == "endpoint_url"}
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  botocore's have no common base
        if type(error).__name__ == "ProfileNotFound":
            if not named or all(environment.get(key) for key in KEYS):
                return {}
            raise ConfigError(
                f"AWS_PROFILE={named}: there is no such profile in {' or '.join(files)}"
            ) from None
        # Its own words quote the line, which may hold a secret.
        kind = type(error).__name__
        raise ConfigError(f"{' or '.join(files)}: is not a file of AWS profiles ({kind})") from None
    return found


def _named_profile(environment: Mapping[str, str]) -> str | None:
    return _first(environment, "AWS_PROFILE", "AWS_DEFAULT_PROFILE")


def _files(environment: Mapping[str, str]) -> tuple[str, str]:
    home = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    return (
        environment.get("AWS_CONFIG_FILE") or str(home / "config"),
        environment.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / "credentials"),
    )


def _session(environment: Mapping[str, str]) -> Any:
    """Return a session of the profile, which reads the files that are there now."""
    from botocore.session import Session  # noqa: PLC0415  takes a tenth of a second

    session = Session(profile=_named_profile(environment) or "default")
    for variable, path in zip(
        ("config_file", "credentials_file"), _files(environment), strict=True
    ):
        session.set_config_variable(variable, path)
    return session


def _of_profile(environment: Mapping[str, str], label: str) -> dict[str, Any]:
    """Return the credentials of a profile: its keys, or those of a process, a role or a login."""

    def ask() -> Any:
        return _session(environment).get_credentials().get_frozen_credentials()

    try:
        found = run_with_watchdog(ask, PATIENCE, label)
    except Stalled:
        raise ConfigError(f"{label}: gave no credentials in {PATIENCE:.0f} s") from None
    except Exception as error:  # noqa: BLE001  botocore's have no common base
        # Neither files nor what a process writes are shown: they may hold secrets.
        kind = type(error).__name__
        raise ConfigError(f"{label}: gives no credentials ({kind})") from None
    return {
        "access_key_id": found.access_key,
        "secret_access_key": found.secret_key,
        "token": found.token,
        "expires_at": datetime.now(UTC) + REREAD,
    }
