"""Endpoints and credentials of buckets, from the environment and from AWS's own files.

No value of a credential is kept in anything that is shown: `Access` has the function that returns
them, and a text that says where they are from.
"""

from __future__ import annotations

import configparser
import functools
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from distcache.errors import ConfigError
from distcache.storage.url import Address

__all__ = ["Access", "Credentials", "environment_access"]

REREAD: Final = timedelta(minutes=5)  # files of credentials, which others may renew
PATIENCE: Final = 60.0  # seconds for a process that returns credentials
KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
# Of these, the client asks the machine itself.
OF_MACHINES: Final = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
NEEDING_BOTO3: Final = ("sso_session", "sso_start_url", "role_arn", "credential_source")

Credentials = Callable[[], dict[str, Any]]
"""Returns ``access_key_id``, ``secret_access_key``, ``token`` and ``expires_at``."""


@dataclass(frozen=True)
class Access:
    """How to reach a bucket.

    Attributes
    ----------
    bucket : str
        Its name; a directory, if the kind is ``file``.
    prefix : str
        Before every key; empty, or without slashes at its ends.
    kind : str
        ``s3``, ``gcs``, ``azure`` or ``file``.
    endpoint, region : str or None
        Where it is; by default the provider's own.
    unsigned : bool
        Whether requests have no signature, as of public buckets.
    certificates : bytes or None
        Further roots to trust, in PEM.
    source : str
        Where the credentials are from, for messages.
    credentials : callable or None
        Returns them; None if the client finds them.
    options : dict
        More of the kind's own, which may be secret.
    """

    bucket: str
    prefix: str = ""
    kind: str = "s3"
    endpoint: str | None = None
    region: str | None = None
    unsigned: bool = False
    certificates: bytes | None = field(default=None, repr=False)
    source: str = "the environment"
    credentials: Credentials | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> Any:
        raise TypeError("what reaches a bucket is never pickled")


def environment_access(address: Address, environment: Mapping[str, str] = os.environ) -> Access:
    """Return how the environment, and the profile that it names, reach a bucket.

    As for AWS's own tools: keys of the environment come first, then those of the profile
    (AWS_PROFILE, by default ``default``) in ``~/.aws``, then what the machine itself offers.

    Raises
    ------
    ConfigError
        If the profile does not exist, or needs what is not installed.
    """
    profile = _read_profile(environment)
    endpoint = _first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    region = _first(environment, "AWS_REGION", "AWS_DEFAULT_REGION") or profile.get("region")
    bundle = _first(environment, "AWS_CA_BUNDLE") or profile.get("ca_bundle")
    unsigned = environment.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes")
    source, credentials = _credentials(environment, profile)
    return Access(
        bucket=address.root,
        endpoint=endpoint or profile.get("endpoint_url"),
        region=region,
        unsigned=unsigned,
        certificates=None if bundle is None else _read_certificates(bundle),
        source="requests without a signature" if unsigned else source,
        credentials=None if unsigned else credentials,
    )


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _read_certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"AWS_CA_BUNDLE {path}: cannot be read: {error.strerror}") from error


def _credentials(
    environment: Mapping[str, str], profile: Mapping[str, str]
) -> tuple[str, Credentials | None]:
    """Return where credentials are from, and the function that returns them."""
    named = environment.get("AWS_PROFILE")
    if all(environment.get(name) for name in KEYS):
        return "AWS_ACCESS_KEY_ID of the environment", None
    label = f"profile {named or 'default'!r} of ~/.aws"
    if profile.get("aws_access_key_id") and profile.get("aws_secret_access_key"):
        return label, functools.partial(_from_files, environment)
    if command := profile.get("credential_process"):
        return f"credential_process of {label}", functools.partial(_from_process, command)
    if any(profile.get(name) for name in NEEDING_BOTO3):
        return label, _from_boto3(named)
    if named:
        raise ConfigError(f"AWS_PROFILE={named}: has no credentials in ~/.aws")
    if any(environment.get(name) for name in OF_MACHINES):
        return "the identity of this container", None
    return "the environment, ~/.aws and this machine's own identity", None


def _read_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the profile, of both of AWS's files; credentials come first.

    Raises
    ------
    ConfigError
        If a profile is named that does not exist, or a file is not of this form.
    """
    home = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    name = environment.get("AWS_PROFILE") or "default"
    config = environment.get("AWS_CONFIG_FILE") or str(home / "config")
    shared = environment.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / "credentials")
    section = name if name == "default" else f"profile {name}"
    found = [_read_section(config, section), _read_section(shared, name)]
    has_keys = all(environment.get(key) for key in KEYS)
    if environment.get("AWS_PROFILE") and found == [None, None] and not has_keys:
        raise ConfigError(f"AWS_PROFILE={name}: there is no such profile in {config} or {shared}")
    return {key: value for fields in found if fields for key, value in fields.items()}


def _read_section(path: str, section: str) -> dict[str, str] | None:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        # The parser's own words quote the line, which may hold a secret.
        kind = type(error).__name__
        raise ConfigError(f"{path}: is not a file of AWS profiles ({kind})") from None
    return dict(parser[section]) if parser.has_section(section) else None


def _from_files(environment: Mapping[str, str]) -> dict[str, Any]:
    profile = _read_profile(environment)
    return {
        "access_key_id": profile["aws_access_key_id"],
        "secret_access_key": profile["aws_secret_access_key"],
        "token": profile.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + REREAD,
    }


def _from_process(command: str) -> dict[str, Any]:
    """Run the program of a profile, which writes credentials as JSON; no shell is started."""
    name = shlex.split(command)[0]
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, timeout=PATIENCE, check=True
        )
        found = json.loads(done.stdout)
        expires = found.get("Expiration")
        return {
            "access_key_id": found["AccessKeyId"],
            "secret_access_key": found["SecretAccessKey"],
            "token": found.get("SessionToken"),
            "expires_at": datetime.fromisoformat(expires)
            if expires
            else datetime.now(UTC) + REREAD,
        }
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, AttributeError) as error:
        # Neither its output nor the whole command are shown: they may hold secrets.
        kind = type(error).__name__
        raise ConfigError(f"credential_process {name}: returned no credentials ({kind})") from None


def _from_boto3(profile: str | None) -> Credentials:
    try:
        from boto3 import Session  # noqa: PLC0415
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"profile {profile or 'default'!r} of ~/.aws: needs boto3 for its single sign-on or "
            "role; pip install boto3"
        ) from error
    try:
        provider: Any = Boto3CredentialProvider(Session(profile_name=profile))
    except Exception as error:  # noqa: BLE001  botocore's have no common base
        kind = type(error).__name__
        raise ConfigError(f"profile {profile or 'default'!r} of ~/.aws: {kind}") from None
    return provider  # type: ignore[no-any-return]
