"""`distcache schema`: the form of a configuration, for editors."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from distcache import __version__
from distcache.builder.configuration import NOT_WRITTEN
from distcache.cli.show import print_json
from distcache.megatron.options import MEGATRON_KEYS
from distcache.plan.config import Config

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_command() -> None:
    """Print the JSON schema of a configuration.

    Editors complete and check a YAML file that names it in its first line:
    `# yaml-language-server: $schema=blend.schema.json`.

    Examples
    --------
        distcache schema > blend.schema.json
    """
    print_json(configuration_schema())


def configuration_schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration, which may have Megatron's options, too."""
    found: dict[str, Any] = msgspec.json.schema(Config)
    own = found["$defs"]["Config"]
    fields: dict[str, Any] = own["properties"]
    for name in NOT_WRITTEN:
        del fields[name]
    spellings = {spelt for name in MEGATRON_KEYS for spelt in (name, name.replace("_", "-"))}
    fields |= {name: {"description": "an option of Megatron-LM"} for name in sorted(spellings)}
    # Options of a training command may stand for the sequence length.
    own.pop("required", None)
    own["title"] = "Configuration of distcache"
    return {"$schema": DIALECT, "$comment": f"distcache {__version__}", **found}
