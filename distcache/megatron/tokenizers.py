"""What Megatron-Core's tokenizers call themselves, release by release.

The ``unique_identifiers`` of a tokenizer enter every file name: its class, its path, and as text
the arguments that ``build_tokenizer`` passes to it, in their order. Which those are changes with
nearly every release, so that the names of all files change, although no array does.

Read from the wheels of megatron-core 0.16.1, 0.17.1, 0.18.2 and 0.19.2:
``megatron/core/tokenizers/**/build_tokenizer.py``, ``megatron_tokenizer.py``,
``text/text_tokenizer.py``, and the tokenizer's options in ``megatron/training``.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import msgspec

from distcache.errors import ConfigError
from distcache.io.files import read_file

__all__ = ["RELEASES", "MegatronTokenizer", "Release", "TokenizerType", "identifiers"]

Release = Literal["0.16", "0.17", "0.18", "0.19"]
RELEASES: Final[tuple[Release, ...]] = get_args(Release)

TokenizerType = Literal[
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    "TikTokenizer",
    "BertWordPieceLowerCase",
    "BertWordPieceCase",
    "GPT2BPETokenizer",
    "NullTokenizer",
]
SENTENCEPIECE: Final = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
BY_NAME: Final = ("BertWordPieceLowerCase", "BertWordPieceCase", "GPT2BPETokenizer")
TEXT: Final = "default_tokenizer.DefaultTokenizerText"
# The classes that a metadata file can name by its model type.
MODELS: Final = {
    "default": TEXT,  # in 0.16
    "default-text": TEXT,
    "gpt": "gpt_tokenizer.GPTTokenizer",
    "mamba": "mamba_tokenizer.MambaTokenizer",
    "bert": "bert_tokenizer.BertTokenizer",
    "t5": "t5_tokenizer.T5Tokenizer",
}
LARGEST_METADATA: Final = 1 << 20  # bytes


class MegatronTokenizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Megatron's options of a tokenizer, by their names on its command line.

    An option that is not given is None or false; releases differ in what it is then.

    Attributes
    ----------
    tokenizer_type : str
        Which kind.
    tokenizer_model : str or None
        Path or name of the model, exactly as training is given it.
    tokenizer_metadata : str or None
        A JSON file that names the class.
    tokenizer_special_tokens : tuple of str or None
        Also ``--tiktoken-special-tokens``.
    vocab_size : int or None
        Size of the vocabulary.
    vocab_file, merge_file : str or None
        Files of a byte-pair encoding.
    chat_template : str or None
        From 0.18 on.
    tiktoken_pattern : str or None
        "v1" or "v2".
    tiktoken_num_special_tokens : int
        How many.
    tokenizer_sentencepiece_legacy, tokenizer_sentencepiece_ignore_extra_whitespaces : bool
        The second is from 0.18 on, and on unless ``--no-...`` says otherwise.
    tokenizer_hf_use_fast, tokenizer_hf_include_special_tokens : bool
        Only 0.16 asks for them; later releases do both by default.
    tokenizer_hf_no_use_fast, tokenizer_hf_no_include_special_tokens : bool
        From 0.17 on.
    trust_remote_code : bool
        Of Hugging Face's tokenizers.
    null_tokenizer_eod_id, null_tokenizer_pad_id : int or None
        From 0.18 on.
    """

    tokenizer_type: TokenizerType
    tokenizer_model: str | None = None
    tokenizer_metadata: str | None = None
    tokenizer_special_tokens: tuple[str, ...] | None = None
    vocab_size: int | None = None
    vocab_file: str | None = None
    merge_file: str | None = None
    chat_template: str | None = None
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int = 1000
    tokenizer_sentencepiece_legacy: bool = False
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = True
    tokenizer_hf_use_fast: bool = False
    tokenizer_hf_include_special_tokens: bool = False
    tokenizer_hf_no_use_fast: bool = False
    tokenizer_hf_no_include_special_tokens: bool = False
    trust_remote_code: bool = False
    null_tokenizer_eod_id: int | None = None
    null_tokenizer_pad_id: int | None = -1


def identifiers(options: MegatronTokenizer, release: Release) -> dict[str, Any]:
    """Return the ``unique_identifiers`` that a release gives a tokenizer.

    Parameters
    ----------
    options : MegatronTokenizer
        Its options.
    release : str
        One of `RELEASES`.

    Returns
    -------
    dict
        In Megatron's order, which enters the names of files.

    Raises
    ------
    ConfigError
        If Megatron would refuse the options, or the metadata cannot be read.
    """
    kind = options.tokenizer_type
    if kind == "NullTokenizer":
        path: str | None = None
        passed = _of_null(options, release)
    elif kind == "TikTokenizer":
        path, passed = options.tokenizer_model, _of_tiktoken(options, release)
    elif kind in SENTENCEPIECE:
        path, passed = options.tokenizer_model, _of_sentencepiece(options, release)
    else:
        path = kind if kind in BY_NAME else options.tokenizer_model
        passed = _of_hugging_face(options, release)
    if path is None and kind != "NullTokenizer":
        raise ConfigError(f"tokenizer: {kind} needs a tokenizer_model")
    found: dict[str, Any] = {"class": _class_of(options, release), "tokenizer_path": path}
    return found | {name: str(value) for name, value in passed.items()}


def _class_of(options: MegatronTokenizer, release: Release) -> str:
    """Return the class that the metadata names, or the default."""
    model = default = "default" if release == "0.16" else "default-text"
    path = options.tokenizer_metadata
    if path is not None and options.tokenizer_type != "NullTokenizer":
        try:
            document = msgspec.json.decode(read_file(path, LARGEST_METADATA), type=dict[str, Any])
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"tokenizer_metadata: {path!r} cannot be read: {error}") from error
        model = document.get("model_type") or model
    if model not in MODELS or (MODELS[model] == TEXT and model != default):
        raise ConfigError(
            f"tokenizer_metadata: Megatron-Core {release} has no model_type {model!r}"
        )
    return f"megatron.core.tokenizers.text.models.{MODELS[model]}"


def _special(options: MegatronTokenizer) -> list[str] | None:
    tokens = options.tokenizer_special_tokens
    return None if tokens is None else list(tokens)


def _template(options: MegatronTokenizer, release: Release) -> dict[str, Any]:
    return {"chat_template": options.chat_template} if release >= "0.18" else {}


def _of_hugging_face(options: MegatronTokenizer, release: Release) -> dict[str, Any]:
    special: Any = _special(options) or []
    by_name = options.tokenizer_type in BY_NAME
    if options.tokenizer_type == "BertWordPieceCase":
        special = [f"<extra_id_{number}>" for number in range(100)]
    fast = not options.tokenizer_hf_no_use_fast
    around = not options.tokenizer_hf_no_include_special_tokens
    if release == "0.16":
        fast = options.tokenizer_hf_use_fast
        around = options.tokenizer_hf_include_special_tokens
    files = {"vocab_file": options.vocab_file, "merges_file": options.merge_file}
    tokens = {"additional_special_tokens": special}
    named = tokens | files if by_name else _template(options, release) | files | tokens
    flags = {"use_fast": fast, "trust_remote_code": options.trust_remote_code}
    return named | flags | {"include_special_tokens": around}


def _of_sentencepiece(options: MegatronTokenizer, release: Release) -> dict[str, Any]:
    passed = _template(options, release)
    if release >= "0.18":
        ignored = options.tokenizer_sentencepiece_ignore_extra_whitespaces
        passed["ignore_extra_whitespaces"] = ignored
    passed["legacy"] = options.tokenizer_sentencepiece_legacy
    passed["special_tokens"] = _special(options)
    return passed


def _of_tiktoken(options: MegatronTokenizer, release: Release) -> dict[str, Any]:
    passed = _template(options, release)
    if options.tiktoken_pattern:
        passed["pattern"] = options.tiktoken_pattern
    if options.vocab_size:
        passed["vocab_size"] = options.vocab_size
    passed["num_special_tokens"] = options.tiktoken_num_special_tokens
    passed["special_tokens"] = _special(options)
    return passed


def _of_null(options: MegatronTokenizer, release: Release) -> dict[str, Any]:
    passed: dict[str, Any] = {"vocab_size": options.vocab_size} if options.vocab_size else {}
    if release >= "0.18":
        given = {"eod_id": options.null_tokenizer_eod_id, "pad_id": options.null_tokenizer_pad_id}
        passed |= {name: value for name, value in given.items() if value is not None}
    return passed
