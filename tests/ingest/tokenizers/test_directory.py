"""A directory makes the tokens that AutoTokenizer makes of it, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
from transformers import AutoTokenizer

from distcache.errors import ConfigError, NotReady
from distcache.ingest.tokenizers import directory as tokenizer_directory
from distcache.ingest.tokenizers.find import find_tokenizer, make_tokenizer
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from tests.support import texts

pytestmark = pytest.mark.slow

LLAMA = {
    "tokenizer_class": "LlamaTokenizerFast",
    **{"bos_token": "<s>", "eos_token": texts.END, "unk_token": texts.END},
}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": texts.END}
TEXTS = ["hello world", "", "<extra> a", f"a{texts.END}b", " <s> x"]


def make(directory: Path, tokenizers: Path, files: dict[str, Any], template: str = "$A") -> Path:
    """Write a directory with a tokenizer whose template puts tokens around a text."""
    directory.mkdir(exist_ok=True)
    bpe = library.Tokenizer.from_file(str(tokenizers / "tokenizer.json"))
    bpe.post_processor = library.processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 1), (texts.END, 0)]
    )
    bpe.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


def tokens_of(options: TokenizerOptions) -> list[list[int]]:
    """Return the tokens of the texts."""
    loaded = make_tokenizer(find_tokenizer(options), options)
    return [tokens.tolist() for tokens in loaded.encode(TEXTS).split()]


def theirs(directory: Path, *, around: bool) -> list[list[int]]:
    """Return the tokens that training makes of the texts."""
    loaded = AutoTokenizer.from_pretrained(str(directory))
    if around:
        return [loaded(text).input_ids for text in TEXTS]
    return [loaded.convert_tokens_to_ids(loaded.tokenize(text)) for text in TEXTS]


@pytest.mark.few(1)
@pytest.mark.parametrize("template", ["$A", "<s> $A", f"<s> $A {texts.END}"])
@pytest.mark.parametrize("stated", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("kind", [LLAMA, PLAIN], ids=["llama", "plain"])
def test_tokens_around_a_text(
    kind: dict[str, Any],
    stated: dict[str, Any],
    template: str,
    tokenizers: Path,
    tmp_path: Path,
) -> None:
    """They are those of transformers; `tokenizer.json` alone can be followed, too."""
    files = {"tokenizer_config.json": kind | {"bos_token": "<s>"} | stated}
    directory = make(tmp_path / "t", tokenizers, files, template)
    options = TokenizerOptions(str(directory), special_tokens=True)
    assert tokens_of(options) == theirs(directory, around=True)
    alone = TokenizerOptions(str(directory / "tokenizer.json"), special_tokens=True)
    assert (tokens_of(alone)[0][:1] == [1]) == ("<s>" in template)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": PLAIN | {"pad_token": "[NEW]"}},
        {"tokenizer_config.json": PLAIN | {"additional_special_tokens": ["<extra>"]}},
        {"special_tokens_map.json": {"unk_token": {"content": "[UNK]"}}},
        {"added_tokens.json": {"<extra>": 600}},
        {"tokenizer_config.json": PLAIN | {"add_prefix_space": True}},
        {"tokenizer_config.json": PLAIN | {"tokenizer_class": "MyTokenizer"}},
        {"tokenizer_config.json": {k: v for k, v in LLAMA.items() if k != "unk_token"}},
        {"config.json": {"model_type": "qwen2"}},
    ],
)
def test_files_that_change_tokens(files: dict[str, Any], tokenizers: Path, tmp_path: Path) -> None:
    """They are followed as training follows them."""
    directory = make(tmp_path / "t", tokenizers, files)
    assert tokens_of(TokenizerOptions(str(directory))) == theirs(directory, around=False)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config.json": PLAIN | {"split_special_tokens": True}}, "split_special_tokens"),
        (
            {"tokenizer_config.json": PLAIN | {"auto_map": {"AutoTokenizer": ["a.B", None]}}},
            "auto_map names its own code",
        ),
        ({"tokenizer_config.json": [1]}, "is not an object"),
        ({"config.json": {"model_type": "roberta"}, "vocab.json": [1]}, "cannot load it"),
    ],
)
def test_what_is_refused(
    files: dict[str, Any], said: str, tokenizers: Path, tmp_path: Path
) -> None:
    """What the library tokenizers cannot do alone, and what is damaged."""
    directory = make(tmp_path / "t", tokenizers, files)
    if "vocab.json" in files:
        (directory / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=said):
        tokens_of(TokenizerOptions(str(directory)))


def test_without_transformers(
    tokenizers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is followed alone; what files beside it mean is not guessed."""
    monkeypatch.setattr(tokenizer_directory, "find_spec", lambda _name: None)
    directory = make(tmp_path / "t", tokenizers, {})
    alone = tokens_of(TokenizerOptions(str(directory)))
    make(directory, tokenizers, {"tokenizer_config.json": PLAIN})
    with pytest.raises(ConfigError, match=r"tokenizer_config.json may change tokens; install the"):
        tokens_of(TokenizerOptions(str(directory)))
    assert tokens_of(TokenizerOptions(str(directory / "tokenizer.json"))) == alone


def test_files_that_change_nothing(tokenizers: Path, tmp_path: Path) -> None:
    """The digest of a receipt is that of the file, with or without what is beside it."""
    config = PLAIN | {"pad_token": texts.END}
    directory = make(tmp_path / "t", tokenizers, {"tokenizer_config.json": config})
    file = TokenizerOptions(str(directory / "tokenizer.json"))
    there = make_tokenizer(find_tokenizer(TokenizerOptions(str(directory))), file)
    assert there.facts.digest == make_tokenizer(find_tokenizer(file), file).facts.digest


@pytest.mark.few(1)
def test_a_map_names_the_end_of_documents(tokenizers: Path, tmp_path: Path) -> None:
    """Of a directory, transformers says it; beside a file, two that differ must be chosen from."""
    files: dict[str, Any] = {"special_tokens_map.json": {"eos_token": "<s>"}}
    directory = make(tmp_path / "t", tokenizers, files)
    file = str(directory / "tokenizer.json")
    assert find_tokenizer(TokenizerOptions(file)).end == "<s>"
    files["tokenizer_config.json"] = PLAIN
    make(directory, tokenizers, files)
    theirs = AutoTokenizer.from_pretrained(str(directory)).eos_token
    assert find_tokenizer(TokenizerOptions(str(directory))).end == theirs
    with pytest.raises(ConfigError, match=r"eos_token is .* name the right one with --eod"):
        find_tokenizer(TokenizerOptions(file))
    assert find_tokenizer(TokenizerOptions(file, eod="<s>")).end is not None


def test_vocabulary_and_merges_of_gpt2(tokenizers: Path, tmp_path: Path) -> None:
    """Are the tokenizer that transformers makes of them, given as the file or the directory."""
    content = json.loads((tokenizers / "tokenizer.json").read_text())["model"]
    vocabulary = {**content["vocab"], "<|endoftext|>": len(content["vocab"]) + 5}
    (tmp_path / "gpt2-vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(NotReady, match="merges are expected beside"):
        find_tokenizer(TokenizerOptions(str(tmp_path / "gpt2-vocab.json")))
    merges = "\n".join(" ".join(pair) for pair in content["merges"])
    (tmp_path / "gpt2-merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    options = TokenizerOptions(str(tmp_path / "gpt2-vocab.json"))
    loaded = make_tokenizer(find_tokenizer(options), options)
    assert loaded.facts.eod == vocabulary["<|endoftext|>"]
    bpe = library.Tokenizer.from_file(str(tokenizers / "tokenizer.json"))
    (found,) = loaded.encode(["hello wörld"]).split()
    assert found.tolist() == bpe.encode("hello wörld", add_special_tokens=False).ids
    assert loaded.decode(found.tolist()) == "hello wörld"
    ended = loaded.encode(["a<|endoftext|>"]).ids.tolist()
    assert ended[-1] == vocabulary["<|endoftext|>"]
    directory = tmp_path / "gpt2"
    directory.mkdir()
    (tmp_path / "gpt2-vocab.json").rename(directory / "vocab.json")
    (tmp_path / "gpt2-merges.txt").rename(directory / "merges.txt")
    assert find_tokenizer(TokenizerOptions(str(directory))).kind == "huggingface"


def test_files_beside_a_vocabulary_and_merges(tokenizers: Path, tmp_path: Path) -> None:
    """A directory without tokenizer.json is read as training reads it, too."""
    model = json.loads((tokenizers / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": 700}))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    options = TokenizerOptions(str(tmp_path))
    assert tokens_of(options) == theirs(tmp_path, around=False)
    alone = find_tokenizer(TokenizerOptions(str(tmp_path / "vocab.json")))
    assert alone.end == "<|endoftext|>"


def test_files_beside_a_sentencepiece_model(tmp_path: Path) -> None:
    """They are refused; the model alone can be given."""
    (tmp_path / "tokenizer.model").write_bytes(b"model")
    assert find_tokenizer(TokenizerOptions(str(tmp_path))).kind == "sentencepiece"
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    with pytest.raises(ConfigError, match=r"reads tokenizer_config.json beside tokenizer\.model"):
        find_tokenizer(TokenizerOptions(str(tmp_path)))
    alone = TokenizerOptions(str(tmp_path / "tokenizer.model"))
    assert find_tokenizer(alone).kind == "sentencepiece"
