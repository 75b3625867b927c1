"""Profiles of NVIDIA's Multi-Storage Client, which Megatron reads ``msc://`` with.

Its configuration is a YAML or JSON file (MSC_CONFIG, or in its usual places) with `profiles`, each
with a `storage_provider` and perhaps a `credentials_provider`. The types that are one bucket or
directory are read here, with our own client; the client itself is not needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from distcache.errors import ConfigError
from distcache.storage.access import Access, Credentials, environment_access
from distcache.storage.url import Address

__all__ = ["profile_access"]

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
VARIABLE: Final = re.compile(r"\$\{[^}]+\}|\$[A-Za-z_]\w*")
NAMES: Final = ("msc_config", "config")


def profile_access(address: Address, environment: Mapping[str, str] = os.environ) -> Access:
    """Return how a profile reaches its bucket or directory.

    Raises
    ------
    ConfigError
        If there is no such profile, or one of a type that is not known here.
    """
    path, document = _read(environment)
    profile = document.get("profiles", {}).get(address.root)
    if not isinstance(profile, dict):
        raise ConfigError(f"{address}: {path} has no profile {address.root!r}")
    refused = [name for name in REFUSED if profile.get(name)]
    provider = profile.get("storage_provider") or {}
    kind = KINDS.get(provider.get("type", ""))
    if refused or kind is None:
        found = refused[0] if refused else f"storage_provider of type {provider.get('type')!r}"
        raise ConfigError(
            f"{address}: profile {address.root!r} of {path} has a {found}, which is not known "
            f"here; known types are {', '.join(KINDS)}"
        )
    options = _expanded(provider.get("options") or {}, environment, path)
    base = str(options.get("base_path", ""))
    if kind == "file":
        return Access(base or "/", kind=kind, source=path)
    bucket, _, prefix = base.strip("/").partition("/")
    if not bucket:
        raise ConfigError(f"{address}: profile {address.root!r} of {path} has no base_path")
    source, credentials, more = _credentials(profile, environment, path, kind)
    usual = environment_access(Address("s3", bucket, ""), environment) if kind == "s3" else None
    return Access(
        bucket=bucket,
        prefix=prefix,
        kind=kind,
        endpoint=options.get("endpoint_url") or (usual.endpoint if usual else None),
        region=options.get("region_name") or (usual.region if usual else None),
        unsigned=usual.unsigned if usual else False,
        certificates=usual.certificates if usual else None,
        source=source or (usual.source if usual else "the environment"),
        credentials=credentials or (usual.credentials if usual else None),
        options=more,
    )


def _credentials(
    profile: Mapping[str, Any], environment: Mapping[str, str], path: str, kind: str
) -> tuple[str, Credentials | None, dict[str, str]]:
    """Return where a profile's credentials are from, and what returns them, or options with them.

    Raises
    ------
    ConfigError
        If they are of a type that is not known here.
    """
    provider = profile.get("credentials_provider")
    if not provider:
        return "", None, {}
    options = _expanded(provider.get("options") or {}, environment, path)
    source = f"{provider.get('type')} of {path}"
    if kind == "s3" and provider.get("type") == "S3Credentials":
        known = {
            "access_key_id": options.get("access_key"),
            "secret_access_key": options.get("secret_key"),
            "token": options.get("session_token"),
            "expires_at": None,
        }
        return source, lambda: known, {}
    if kind == "azure" and provider.get("type") == "AzureCredentials":
        return source, None, {"connection_string": str(options.get("connection", ""))}
    raise ConfigError(f"{source}: is not known here; leave it out, or use S3Credentials")


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
            text = Path(path).read_text(encoding="utf-8")
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
