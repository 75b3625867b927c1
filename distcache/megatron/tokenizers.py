"""What Megatron-Core's tokenizers call themselves, release by release.

The ``unique_identifiers`` of a tokenizer are part of every file name: its class, its path, and as
text the arguments that ``build_tokenizer`` passes to it, in their order. These change with nearly
every release, so that the names of all files change, although no array does.

Read from the wheels of megatron-core 0.16.1, 0.17.1, 0.18.2 and 0.19.2:
``megatron/core/tokenizers/**/build_tokenizer.py``, ``megatron_tokenizer.py``,
``text/text_tokenizer.py``, and the tokenizer's options in ``megatron/training``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from distcache.errors import ConfigError
from distcache.storage.files import read_file
from distcache.storage.threads import decodable

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


@decodable
class MegatronTokenizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Megatron's options of a tokenizer, by their names on its command line.

    An option that is not given is None or false; releases differ in what it is then.
    """

    tokenizer_type: TokenizerType  # kind of the tokenizer
    tokenizer_model: str | None = None  # path or name of the model, exactly as training is given it
    tokenizer_metadata: str | None = None  # a JSON file, which may name the class by its model type
    model_type: str | None = None  # type of the model, if the file has been read
    tokenizer_special_tokens: tuple[str, ...] | None = None  # also ``--tiktoken-special-tokens``
    vocab_size: int | None = None  # size of the vocabulary
    # files of a byte-pair encoding
    vocab_file: str | None = None
    merge_file: str | None = None
    chat_template: str | None = None  # chat template; since 0.18
    tiktoken_pattern: str | None = None  # "v1" or "v2"
    tiktoken_num_special_tokens: int = 1000  # number of special tokens
    # the second is from 0.18 on, and on unless ``--no-...`` says otherwise
    tokenizer_sentencepiece_legacy: bool = False
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = True
    # options that only 0.16 asks for; later releases do both by default
    tokenizer_hf_use_fast: bool = False
    tokenizer_hf_include_special_tokens: bool = False
    # options since 0.17
    tokenizer_hf_no_use_fast: bool = False
    tokenizer_hf_no_include_special_tokens: bool = False
    trust_remote_code: bool = False  # option of Hugging Face's tokenizers
    # token ids since 0.18
    null_tokenizer_eod_id: int | None = None
    null_tokenizer_pad_id: int | None = -1


def releases_in(text: str) -> tuple[Release, ...]:
    """Read releases, separated by commas, as in ``0.18,0.19.2``.

    Raises
    ------
    ConfigError
        If one is not known.
    """
    found: list[Release] = []
    for word in filter(None, text.replace(" ", "").split(",")):
        named = [release for release in RELEASES if f"{word}.".startswith(f"{release}.")]
        if not named:
            raise ConfigError(
                f"{word!r} is not a known release of Megatron-Core; known: {', '.join(RELEASES)}"
            )
        found += named
    return tuple(dict.fromkeys(found))


def one_release(text: str) -> Release:
    """Read one release, as in ``0.19`` or ``0.19.2``.

    Raises
    ------
    ConfigError
        If it is not known, or there are several.
    """
    releases = releases_in(text)
    if len(releases) != 1:
        raise ConfigError(f"{text!r}: expected one release of Megatron-Core")
    return releases[0]


def checked_tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Check Megatron's options of a tokenizer, and read the metadata that they name.

    Parameters
    ----------
    fields : mapping
        Fields of `MegatronTokenizer`, and maybe ``megatron``, a release.

    Returns
    -------
    dict
        The same without those that have their default, and with the model type.

    Raises
    ------
    ConfigError
        If an option is unknown or wrong, or the metadata cannot be read, or if Megatron would
        refuse them.
    """
    release = str(fields.get("megatron", ""))
    given = {name: value for name, value in fields.items() if name != "megatron"}
    try:
        options = msgspec.convert(given, MegatronTokenizer)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error
    if options.tokenizer_metadata is not None and options.model_type is None:
        model = _model_type(options.tokenizer_metadata)
        options = msgspec.structs.replace(options, model_type=model)
    releases = releases_in(release)
    if len(releases) > 1:
        raise ConfigError(f"megatron: {release}: expected one release; exports name several")
    for each in releases or RELEASES[-1:]:
        identifiers(options, each)
    kept = {
        field.name: msgspec.to_builtins(getattr(options, field.name))
        for field in msgspec.structs.fields(options)
        if getattr(options, field.name) != field.default
    }
    return kept | ({"megatron": releases[0]} if releases else {})


def _model_type(path: str) -> str | None:
    try:
        document = msgspec.json.decode(read_file(path, LARGEST_METADATA), type=dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"tokenizer_metadata: {path!r} cannot be read: {error}") from error
    found = document.get("model_type")
    return None if found is None else str(found)


def identifiers_of(
    tokenizer: Mapping[str, Any], releases: Sequence[Release] = ()
) -> list[dict[str, Any]]:
    """Return what a tokenizer is called, each name once.

    Parameters
    ----------
    tokenizer : mapping
        Megatron's ``unique_identifiers``, or its options as `checked_tokenizer` returns them.
    releases : sequence of str
        Releases of Megatron-Core; by default the one that the options name.

    Returns
    -------
    list of dict
        Not more than releases: some call a tokenizer alike.

    Raises
    ------
    ConfigError
        If there are no options for so many releases, or no release for the options.
    """
    if "tokenizer_type" not in tokenizer:
        if releases:
            raise ConfigError(
                "the names of a release need Megatron's options of the tokenizer, and the cache "
                "only has its description: give them with --tokenizer FILE, a YAML or JSON file "
                "of tokenizer_type, tokenizer_model and so on"
            )
        return [dict(tokenizer)]
    given = dict(tokenizer)
    named = releases_in(str(given.pop("megatron", "")))
    if not releases and not named:
        raise ConfigError(
            f"megatron: missing; name the release, one of {', '.join(RELEASES)}, since "
            "each calls its tokenizers in its own way"
        )
    options = msgspec.convert(given, MegatronTokenizer)
    found = [identifiers(options, release) for release in releases or named]
    return list({repr(entry): entry for entry in found}.values())


def identifiers(options: MegatronTokenizer, release: Release) -> dict[str, Any]:
    """Return the ``unique_identifiers`` that a release gives a tokenizer.

    Parameters
    ----------
    options : MegatronTokenizer
        Options of the tokenizer.
    release : str
        One of `RELEASES`.

    Returns
    -------
    dict
        Identifiers in Megatron's order, which is part of the names of files.

    Raises
    ------
    ConfigError
        If Megatron would refuse the options.
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
        raise ConfigError(f"{kind} needs a tokenizer_model")
    found: dict[str, Any] = {"class": _class_of(options, release), "tokenizer_path": path}
    return found | {name: str(value) for name, value in passed.items()}


def _class_of(options: MegatronTokenizer, release: Release) -> str:
    """Return the class that the metadata names, or the default."""
    default = "default" if release == "0.16" else "default-text"
    named = None if options.tokenizer_type == "NullTokenizer" else options.model_type
    model = named or default
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
