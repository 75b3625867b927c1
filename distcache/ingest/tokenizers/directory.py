"""A tokenizer's directory, as training's `AutoTokenizer` reads it.

Files beside `tokenizer.json` can change tokens there: they put tokens around a text, and add
tokens. Where releases 4 and 5 of transformers agree, the description is changed alike; whatever
else would change tokens is refused by its key. If transformers is installed, it is the judge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import tokenizers

from distcache.errors import ConfigError
from distcache.ingest.tokenizers.gigatoken.trials import trials
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions, read_tokenizer_file, refusing
from distcache.storage.timeouts import limits

CONFIG: Final = "tokenizer_config.json"
MAP: Final = "special_tokens_map.json"
ADDED: Final = "added_tokens.json"
MODEL: Final = "config.json"
FILES: Final = (CONFIG, MAP, ADDED, MODEL)
NAMED: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
LISTS: Final = (
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)
FLAGS: Final = ("lstrip", "rstrip", "normalized", "single_word", "special")
# Classes that take tokenizer.json unchanged, and those that put add_bos_token and add_eos_token
# around a text, with the defaults of both (transformers 4.57, tokenization_*_fast.py).
PLAIN: Final = (
    *("PreTrainedTokenizer", "TokenizersBackend", "Qwen2Tokenizer", "GPT2Tokenizer"),
    *("BloomTokenizer", "CodeGenTokenizer"),
)
BOS_EOS_CLASSES: Final = {
    "LlamaTokenizer": (True, False),
    "CodeLlamaTokenizer": (True, False),
    "GemmaTokenizer": (True, False),
    "CohereTokenizer": (True, False),
    "GPTNeoXTokenizer": (False, False),
}
# Those that take vocab.json and merges.txt as GPT-2's own tokenizer does.
GPT2: Final = ("PreTrainedTokenizer", "GPT2Tokenizer")
# Special tokens that a class has if nothing names others (the same files, __init__).
_END: Final = "<|endoftext|>"
_LLAMA: Final = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
DEFAULTS: Final = {
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _LLAMA,
    "GemmaTokenizer": {"unk": "<unk>", "bos": "<bos>", "eos": "<eos>", "pad": "<pad>"},
    "CohereTokenizer": {"unk": "<UNK>", "bos": "<BOS_TOKEN>", "eos": "<|END_OF_TURN_TOKEN|>"},
    "GPTNeoXTokenizer": {"unk": _END, "bos": _END, "eos": _END},
    "GPT2Tokenizer": {"unk": _END, "bos": _END, "eos": _END},
    "Qwen2Tokenizer": {"eos": _END, "pad": _END},
    "CodeGenTokenizer": {"unk": _END, "bos": _END, "eos": _END},
    "BloomTokenizer": {**_LLAMA, "pad": "<pad>"},
}
CLASS_OF: Final = {
    "llama": "LlamaTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "cohere": "CohereTokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "gpt2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}
TOKENS: Final = 300  # of the vocabulary, in texts that transformers encodes too
JUDGE: Final = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
def encode(text):
    if sys.argv[2] == "whole":
        return tokenizer(text).input_ids
    return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
tokens = [encode(text) for text in json.load(sys.stdin)]
print("\\n" + json.dumps([tokens, tokenizer.get_added_vocab(), tokenizer.pad_token]))
"""


class TokenizerDirectory(NamedTuple):
    """A tokenizer of a directory."""

    content: bytes  # a `tokenizer.json` that makes the tokens of training
    end: str | None  # token that ends a document


def read_directory(
    path: Path, content: bytes, options: TokenizerOptions, *, around: bool
) -> TokenizerDirectory:
    """Return the tokenizer that training makes of a directory.

    Parameters
    ----------
    path : Path
        Path of its `tokenizer.json`, or of its `vocab.json` if there is none.
    content : bytes
        Content of its `tokenizer.json`, or what takes its place.
    options : TokenizerOptions
        Options for messages.
    around : bool
        Whether the tokens that belong around a text are added.

    Raises
    ------
    ConfigError
        Naming every key that changes tokens in a way that is not followed here.
    """
    directory = path.parent
    files = {name: _read_object(directory / name) for name in FILES}
    if not any(files.values()):
        return TokenizerDirectory(content, None)
    description = _parsed(path, content)
    judged = find_spec("transformers") is not None
    problems = list(_added_problems(files, description, every=not judged))
    problems += _prefix_problems(files[CONFIG], description)
    problems += _other_problems(files[CONFIG])
    kind, followed = _class_of(files), (*PLAIN, *BOS_EOS_CLASSES)
    if path.name == "vocab.json":
        kind, followed = kind or str(files[MODEL].get("model_type", "")), GPT2
    if kind and not judged and kind not in followed:
        problems.append(
            f"{CONFIG}: tokenizer_class {kind!r} may change tokens; install transformers here, so "
            "that both can be compared"
        )
    if not judged:
        problems += _default_problems(files, kind, description)
    stated = None
    if around and not problems:
        stated, problem = _stated_special_tokens(files, description, content, kind)
        if problem and not (judged and stated):
            problems = [problem]
    if problems:
        raise ConfigError(
            *(f"--tokenizer {options.name}: {problem}; {_alone(path)}" for problem in problems)
        )
    if judged:
        choices = [content, *([] if stated is None else [stated])]
        content = _equal_one(path, choices, description, options, around=around)
    return TokenizerDirectory(content, stated_end(directory, options))


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


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is not a tokenizer")
    return found


def _text_of(token: Any) -> str | None:
    """Return the text of a token that a file names, as text or as an object with its content."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _class_of(files: Mapping[str, dict[str, Any]]) -> str:
    """Return the name of the class of transformers, without its `Fast`; empty if unknown."""
    named = files[CONFIG].get("tokenizer_class") or files[MODEL].get("tokenizer_class")
    if isinstance(named, str):
        return named.removesuffix("Fast")
    return CLASS_OF.get(str(files[MODEL].get("model_type")), "")


def _added_problems(
    files: Mapping[str, dict[str, Any]], description: Mapping[str, Any], *, every: bool
) -> Iterator[str]:
    """Yield the added tokens that `tokenizer.json` does not have.

    Some releases of transformers add what any key ending in _token names: `every` counts them.
    """
    known: dict[str, dict[str, Any]] = {
        str(token.get("content")): token for token in description.get("added_tokens") or []
    }
    for name in (CONFIG, MAP):
        for text, key in _special_tokens(files[name], every=every):
            if text not in known:
                yield f"{name}: {key} {text!r} is no added token of tokenizer.json"
    stated = files[CONFIG].get("added_tokens_decoder")
    for number, token in stated.items() if isinstance(stated, dict) else ():
        if problem := _differing(str(number), token, known.get(_text_of(token) or "")):
            yield f"{CONFIG}: added_tokens_decoder {_text_of(token)!r} {problem}"
    for text, number in files[ADDED].items():
        if text not in known or known[text].get("id") != number:
            yield f"{ADDED}: {text!r} with id {number} is no added token of tokenizer.json"


def _differing(number: str, token: Any, theirs: Mapping[str, Any] | None) -> str | None:
    """Return how a token of `added_tokens_decoder` differs from that of `tokenizer.json`."""
    if theirs is None:
        return "is no added token of tokenizer.json"
    if str(theirs.get("id")) != number:
        return f"has id {number} there, {theirs.get('id')} in tokenizer.json"
    stated = token if isinstance(token, dict) else {}
    flags = [
        flag for flag in FLAGS if bool(stated.get(flag, theirs.get(flag))) != bool(theirs.get(flag))
    ]
    return f"has another {', '.join(flags)} in tokenizer.json" if flags else None


def _special_tokens(file: Mapping[str, Any], *, every: bool) -> Iterator[tuple[str, str]]:
    """Yield the special tokens that a file names, each with its key."""
    for key in file:
        named = every or key.removesuffix("_token") in NAMED
        if named and key.endswith("_token") and (text := _text_of(file[key])) is not None:
            yield text, key
    for key in LISTS:
        listed = file.get(key) or []
        for token in listed.values() if isinstance(listed, dict) else listed:
            if (text := _text_of(token)) is not None:
                yield text, key


def _default_problems(
    files: Mapping[str, dict[str, Any]], kind: str, description: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the special tokens that a class has by default, and `tokenizer.json` has not."""
    known = {token.get("content") for token in description.get("added_tokens") or []}
    stated = {**files[MAP], **files[CONFIG]}
    for name, text in DEFAULTS.get(kind, {}).items():
        if f"{name}_token" not in stated and text not in known:
            yield (
                f"no file names {name}_token, and tokenizer_class {kind!r} then adds {text!r}, "
                "which is no added token of tokenizer.json"
            )


def _prefix_problems(config: Mapping[str, Any], description: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether a space is put before a text here and not there, or the other way round."""
    stated = config.get("add_prefix_space")
    pre_tokenizer = description.get("pre_tokenizer") or {}
    parts = [pre_tokenizer, *(pre_tokenizer.get("pretokenizers") or [])]
    found = [part["add_prefix_space"] for part in parts if "add_prefix_space" in part]
    found += [part["prepend_scheme"] != "never" for part in parts if "prepend_scheme" in part]
    if stated is not None and found and bool(stated) != any(found):
        yield f"{CONFIG}: add_prefix_space is {json.dumps(stated)}, tokenizer.json differs"
    if config and stated is None and pre_tokenizer.get("add_prefix_space"):
        yield f"{CONFIG}: has no add_prefix_space, and tokenizer.json has it"


def _other_problems(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("split_special_tokens"):
        yield f"{CONFIG}: split_special_tokens is true"
    automatic = config.get("auto_map") or {}
    if isinstance(automatic, list) or "AutoTokenizer" in automatic:
        yield f"{CONFIG}: auto_map names code of its own"
    if config.get("fix_mistral_regex"):
        yield f"{CONFIG}: fix_mistral_regex changes how text is cut"


def _stated_special_tokens(
    files: Mapping[str, dict[str, Any]],
    description: Mapping[str, Any],
    content: bytes,
    kind: str,
) -> tuple[bytes | None, str | None]:
    """Return a `tokenizer.json` with the tokens around a text that files beside it state.

    Returns
    -------
    changed : bytes or None
        None if it has them, or if nothing is stated.
    problem : str or None
        Why both differ.
    """
    config = {**files[MAP], **files[CONFIG]}
    stated = {f"add_{name}_token": config.get(f"add_{name}_token") for name in NAMED[:2]}
    if set(stated.values()) == {None} and kind not in BOS_EOS_CLASSES:
        return None, None
    ids = {token["content"]: token["id"] for token in description.get("added_tokens") or []}
    around: list[str | None] = []
    for name, default in zip(NAMED[:2], BOS_EOS_CLASSES.get(kind, (False, False)), strict=True):
        value = stated[f"add_{name}_token"]
        text = _text_of(config.get(f"{name}_token"))
        if (default if value is None else value) and text is None:
            return None, f"{CONFIG}: add_{name}_token is true, but no {name}_token is named"
        around.append(text if (default if value is None else value) else None)
    if _is_put_around(content, [None if text is None else ids[text] for text in around]):
        return None, None
    named = {key: value for key, value in stated.items() if value is not None}
    what = json.dumps(named or {"tokenizer_class": kind})
    return _templated(description, around, ids), (
        f"{CONFIG}: has {what}, tokenizer.json puts other tokens around a text, and releases of "
        "transformers differ in which they follow; install the one of training here"
    )


def _is_put_around(content: bytes, around: list[int | None]) -> bool:
    """Return whether a tokenizer puts just these tokens around a text."""
    with refusing():
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        whole = tokenizer.encode("a").ids
        bare = tokenizer.encode("a", add_special_tokens=False).ids
    first, last = around
    return bool(
        whole == [*([] if first is None else [first]), *bare, *([] if last is None else [last])]
    )


def _templated(
    description: Mapping[str, Any], around: list[str | None], ids: Mapping[str, int]
) -> bytes:
    """Return a `tokenizer.json` with a template, as `update_post_processor` makes it."""
    first, last = around
    whole: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if first is not None:
        whole.insert(0, {"SpecialToken": {"id": first, "type_id": 0}})
    if last is not None:
        whole.append({"SpecialToken": {"id": last, "type_id": 0}})
    used = [text for text in (first, last) if text is not None]
    template = {
        "type": "TemplateProcessing",
        "single": whole,
        "pair": [*whole, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in used
        },
    }
    changed = {**description, "post_processor": template}
    return json.dumps(changed, ensure_ascii=False).encode()


def _equal_one(
    path: Path,
    choices: list[bytes],
    description: Mapping[str, Any],
    options: TokenizerOptions,
    *,
    around: bool,
) -> bytes:
    """Return the tokenizer that makes the tokens of this environment's transformers.

    Raises
    ------
    ConfigError
        Naming a text whose tokens differ, of some thousand, if none does.
    """
    loaded = []
    for choice in choices:
        with refusing():
            loaded.append(tokenizers.Tokenizer.from_buffer(choice))
        loaded[-1].no_truncation()
        loaded[-1].no_padding()
    texts = _texts(loaded[0], description)
    theirs, added, padding = _judged(path, texts, options, around=around)
    alone = _alone(path)
    known = {token["content"]: token["id"] for token in description.get("added_tokens") or []}
    different = {text for text in {*known, *added} if known.get(text) != added.get(text)}
    # Release 5 adds a token for padding to what has none: no text means it.
    if other := sorted(text for text in different if text != padding or text in known):
        raise ConfigError(
            f"--tokenizer {options.name}: this environment's transformers has other added tokens: "
            f"{other[0]!r} is {added.get(other[0])}, not {known.get(other[0])}; {alone}"
        )
    differing = ""
    for choice, tokenizer in zip(choices, loaded, strict=True):
        ours = [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=around)]
        if ours == theirs:
            return choice
        for text, here, there in zip(texts, ours, theirs, strict=True):
            if here != there:
                differing = differing or f"{text[:40]!r}: {there[:8]}, not {here[:8]}"
                break
    raise ConfigError(
        f"--tokenizer {options.name}: this environment's transformers makes other tokens of "
        f"{differing}; {alone}"
    )


def _texts(tokenizer: tokenizers.Tokenizer, description: Mapping[str, Any]) -> list[str]:
    """Return texts in which tokenizers differ: of the vocabulary, and with added tokens."""
    size = tokenizer.get_vocab_size()
    chosen = range(0, size, max(size // TOKENS, 1))
    tokens = [tokenizer.decode([token], skip_special_tokens=False) for token in chosen]
    texts = [text for batch in trials([token for token in tokens if token]) for text in batch]
    for token in description.get("added_tokens") or []:
        text = token["content"]
        texts += [text, f"a{text}b", f" {text} ", f"a {text}\n", f"{text}{text}"]
    return texts


def _judged(
    path: Path, texts: list[str], options: TokenizerOptions, *, around: bool
) -> tuple[list[list[int]], dict[str, int], str | None]:
    """Return the tokens of texts, the added tokens, and that of padding, as transformers has them.

    It runs in a process of its own.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    how = "whole" if around else "bare"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", JUDGE, os.path.abspath(path.parent), how],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            env=environment,
            timeout=limits().first_import,
            check=False,
        )
        problem = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except subprocess.TimeoutExpired:
        problem = "it took too long"
    else:
        if done.returncode == 0:
            tokens, added, padding = json.loads(done.stdout.splitlines()[-1])
            return tokens, added, padding
    raise ConfigError(
        f"--tokenizer {options.name}: this environment's transformers cannot load it ({problem}); "
        f"{_alone(path)}"
    )


def _alone(path: Path) -> str:
    return f"give {path} to follow that file alone"


def stated_end(directory: Path, options: TokenizerOptions) -> str | None:
    """Return the token that ends a document, of whichever file of a directory names it.

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
