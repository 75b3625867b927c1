"""A tokenizer's directory, as training's `AutoTokenizer` reads it.

Files beside `tokenizer.json` can change tokens: they put tokens around a text, add tokens, name a
class that cuts text in another way. So transformers reads the directory, in a separate process,
and says which `tokenizer.json` it encodes with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import tokenizers

from distcache.errors import ConfigError
from distcache.ingest.tokenizers.tokenizer import (
    TokenizerOptions,
    TokenizerSource,
    read_tokenizer_file,
    refusing,
)
from distcache.storage.timeouts import limits

CONFIG: Final = "tokenizer_config.json"
MAP: Final = "special_tokens_map.json"
# Files of a directory by which transformers changes what its tokenizer does.
FILES: Final = (CONFIG, MAP, "added_tokens.json", "config.json")
CHAT_TEMPLATE: Final = "chat_template.jinja"  # which changes no token of a text
# Ends with an exit code of 3 and a sentence where tokenizer.json cannot say what training does.
SCRIPT: Final = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
def refuse(why):
    print(why, file=sys.stderr)
    sys.exit(3)
if not tokenizer.is_fast:
    refuse(f"{type(tokenizer).__name__} encodes in Python, and not by the library tokenizers")
if getattr(tokenizer, "split_special_tokens", False):
    refuse("split_special_tokens is true, and tokenizer.json cannot say so")
templates = tokenizer.chat_template
if not isinstance(templates, dict):
    templates = {"default": templates}
found = [tokenizer.backend_tokenizer.to_str(), tokenizer.eos_token]
found += [templates.get("default"), templates.get("tool_use")]
print("\\n" + json.dumps([*found, tokenizer.special_tokens_map], default=str))
"""


def source_of_directory(directory: Path, options: TokenizerOptions, name: str) -> TokenizerSource:
    """Return the tokenizer that `AutoTokenizer` makes of a directory.

    Parameters
    ----------
    directory : Path
        The directory.
    options : TokenizerOptions
        Options for messages.
    name : str
        Name for receipts.

    Raises
    ------
    ConfigError
        If transformers is not installed, or cannot load it, or would not encode by the library
        tokenizers alone.
    """
    beside = next(name for name in FILES if (directory / name).is_file())
    choice = f"or give a file of {directory} to follow that one alone"
    if find_spec("transformers") is None:
        raise ConfigError(
            f"--tokenizer {options.name}: {beside} may change tokens; install the transformers of "
            f"training here, which reads it, {choice}"
        )
    if _has_own_code(directory):
        raise ConfigError(
            f"--tokenizer {options.name}: auto_map names its own code, which is not run here, "
            f"{choice}"
        )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = [sys.executable, "-P", "-c", SCRIPT, os.path.abspath(directory)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=limits().first_import,
            check=False,
        )
        problem = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except subprocess.TimeoutExpired:
        problem = f"it took over {limits().first_import:.0f} s"
    else:
        if done.returncode == 0:
            made, *more = json.loads(done.stdout.splitlines()[-1])
            return TokenizerSource("huggingface", name, _same_or(directory, made), *more)
    raise ConfigError(
        f"--tokenizer {options.name}: this environment's transformers cannot load it ({problem}); "
        f"use that of training, {choice}"
    )


def _same_or(directory: Path, made: str) -> bytes:
    """Return the content of `tokenizer.json` if it is what was made, and else that."""
    path = directory / "tokenizer.json"
    if path.is_file():
        content = read_tokenizer_file(path)
        with refusing():
            if tokenizers.Tokenizer.from_buffer(content).to_str() == made:
                return content
    return made.encode()


def _has_own_code(directory: Path) -> bool:
    """Return whether a directory names Python code that training would have to trust."""
    for name in (CONFIG, "config.json"):
        automatic = _read_object(directory / name).get("auto_map") or {}
        if isinstance(automatic, list) or "AutoTokenizer" in automatic:
            return True
    return False


def stated_end(directory: Path, options: TokenizerOptions) -> str | None:
    """Return the token that ends a document, of whichever file beside a tokenizer names it.

    Raises
    ------
    ConfigError
        If two files name two, and the options none.
    """
    found = {
        name: _text_of(_read_object(directory / name).get("eos_token")) for name in (CONFIG, MAP)
    }
    named = {text for text in found.values() if text is not None}
    if len(named) > 1 and options.eod is None:
        raise ConfigError(
            f"{directory}: eos_token is {found[CONFIG]!r} in {CONFIG} and {found[MAP]!r} in {MAP}; "
            "name the right one with --eod"
        )
    return next(iter(named), None) if len(named) == 1 else found[CONFIG]


def _text_of(token: Any) -> str | None:
    """Return the text of a token that a file names, as text or as an object with its content."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; nothing if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_tokenizer_file(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is not an object, as a tokenizer's files are")
    return found
