"""Profiles of NVIDIA's Multi-Storage Client, which Megatron reads ``msc://`` with.

Its configuration is a YAML or JSON file (MSC_CONFIG, or in its usual places) with `profiles`, each
with a `storage_provider` and perhaps a `credentials_provider`. The types that are one bucket or
directory are read here, with our own client; the client itself is not needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from distcache.errors import ConfigError
from distcache.storage.access import (
    Access,
    Credentials,
    checked_endpoint,
    environment_access,
)
from distcache.storage.files import read_text
from distcache.storage.threads import decodable
from distcache.storage.url import Address

KINDS: Final = {
    "s3": "s3",
    "s8k": "s3",
    "gcs_s3": "s3",
    "ais_s3": "s3",
    "gcs": "gcs",
    "azure": "azure",
    "file": "file",
}
# What changes which bytes a path names, and is not translated.
REFUSED: Final = ("metadata_provider", "provider_bundle", "storage_provider_profiles")
FIELDS: Final = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "token": "session_token",
}
VARIABLE: Final = re.compile(r"\$\{[^}]+\}|\$[A-Za-z_]\w*")


class _Provider(msgspec.Struct, frozen=True):
    """A provider of a profile."""

    type: str
    options: dict[str, Any] | None = None


@decodable
class _Profile(msgspec.Struct, frozen=True):
    """A profile; other fields do not change which bytes a path names."""

    storage_provider: _Provider
    credentials_provider: _Provider | None = None
    metadata_provider: Any = None
    provider_bundle: Any = None
    storage_provider_profiles: Any = None


def profile_access(address: Address, environment: Mapping[str, str] = os.environ) -> Access:
    """Return how a profile reaches its bucket or directory.

    Raises
    ------
    ConfigError
        If there is no such profile, or one of a type that is not known here.
    """
    path, document = _read(environment)
    raw = document.get("profiles")
    if not isinstance(raw, dict) or address.root not in raw:
        raise ConfigError(f"{address}: {path} has no profile {address.root!r}")
    try:
        profile = msgspec.convert(raw[address.root], _Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: profile {address.root!r}: {error}") from None
    refused = [name for name in REFUSED if getattr(profile, name)]
    provider = profile.storage_provider
    kind = KINDS.get(provider.type)
    if refused or kind is None:
        found = refused[0] if refused else f"storage_provider of type {provider.type!r}"
        raise ConfigError(
            f"{address}: profile {address.root!r} of {path} has a {found}, which is not known "
            f"here; known types are {', '.join(KINDS)}"
        )
    options = _expanded(provider.options or {}, environment, path)
    base = str(options.get("base_path", ""))
    if "://" in base:
        raise ConfigError(f"{path}: profile {address.root!r}: base_path is a bucket, not a URL")
    if kind == "file":
        return Access(base or "/", kind=kind, source=path)
    bucket, _, prefix = base.strip("/").partition("/")
    if not bucket:
        raise ConfigError(f"{address}: profile {address.root!r} of {path} has no base_path")
    source, credentials = _credentials(profile.credentials_provider, environment, path, kind)
    usual = environment_access(Address("s3", bucket, ""), environment) if kind == "s3" else None
    return Access(
        bucket=bucket,
        prefix=prefix,
        kind=kind,
        endpoint=checked_endpoint(options.get("endpoint_url"), f"endpoint_url in {path}")
        or (usual.endpoint if usual else None),
        region=options.get("region_name") or (usual.region if usual else None),
        unsigned=usual.unsigned if usual else False,
        certificates=usual.certificates if usual else None,
        source=source or (usual.source if usual else "the environment"),
        credentials=credentials or (usual.credentials if usual else None),
    )


def _credentials(
    provider: _Provider | None, environment: Mapping[str, str], path: str, kind: str
) -> tuple[str, Credentials | None]:
    """Return where a profile's credentials are from, and what returns them.

    Raises
    ------
    ConfigError
        If they are of a type that is not known here, or lack a key.
    """
    if provider is None:
        return "", None
    source = f"{provider.type} of {path}"
    if kind != "s3" or provider.type != "S3Credentials":
        raise ConfigError(f"{source}: is not known here; leave it out, or use S3Credentials")
    options = _expanded(provider.options or {}, environment, path)
    known = {name: options.get(theirs) for name, theirs in FIELDS.items()}
    wrong = [theirs for name, theirs in FIELDS.items() if not isinstance(known[name], str)]
    if set(wrong) - {"session_token"}:
        raise ConfigError(f"{source}: expected texts as {', '.join(wrong)}")
    return source, lambda: {**known, "expires_at": None}


def _expanded(
    options: Mapping[str, Any], environment: Mapping[str, str], path: str
) -> dict[str, Any]:
    """Return options with the variables of the environment in their texts.

    Raises
    ------
    ConfigError
        If a variable is not set.
    """

    def value_of(found: re.Match[str]) -> str:
        name = found[0].strip("${}")
        if name not in environment:
            raise ConfigError(f"{path}: names the variable {name}, which is not set")
        return environment[name]

    return {
        name: VARIABLE.sub(value_of, value) if isinstance(value, str) else value
        for name, value in options.items()
    }


def _read(environment: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the path of the configuration, and what it holds.

    Raises
    ------
    ConfigError
        If there is none, or it is not a mapping.
    """
    import yaml  # noqa: PLC0415  reads JSON, too

    named = environment.get("MSC_CONFIG")
    for path in [named] if named else _usual_places(environment):
        try:
            text = read_text(path)
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read ({type(error).__name__})") from error
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:  # whose words quote the file, which may hold secrets
            raise ConfigError(f"{path}: is not YAML ({type(error).__name__})") from None
        if not isinstance(document, dict):
            raise ConfigError(f"{path}: expected a mapping with profiles")
        return path, document
    raise ConfigError(
        f"msc://: there is no configuration{f' {named}' if named else ''}; set MSC_CONFIG"
    )


def _usual_places(environment: Mapping[str, str]) -> list[str]:
    home = environment.get("HOME", "/")
    user = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    system = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    stems = [f"{user}/msc/config", f"{home}/.msc_config"]
    stems += [f"{directory}/msc/config" for directory in system] + ["/etc/msc_config"]
    return [f"{stem}{suffix}" for stem in stems for suffix in (".yaml", ".yml", ".json")]
