"""A directory makes the tokens that AutoTokenizer makes of it, or is refused by a key."""

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

LLAMA = {
    "tokenizer_class": "LlamaTokenizerFast",
    **{"bos_token": "<s>", "eos_token": texts.END, "unk_token": texts.END},
}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": texts.END}
TEXTS = ["hello world", "", "<extra> a", f"a{texts.END}b", " <s> x"]


@pytest.fixture(params=["with a judge", "alone"])
def judged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether transformers is installed."""
    if request.param == "alone":
        monkeypatch.setattr(tokenizer_directory, "find_spec", lambda _name: None)
    return bool(request.param == "with a judge")


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


def result_of(options: TokenizerOptions) -> list[list[int]] | ConfigError:
    """Return the tokens of the texts, or the refusal."""
    try:
        return tokens_of(options)
    except ConfigError as error:
        return error


@pytest.mark.few(1)
@pytest.mark.long
@pytest.mark.parametrize("template", ["$A", "<s> $A", f"<s> $A {texts.END}"])
@pytest.mark.parametrize("stated", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("kind", [LLAMA, PLAIN], ids=["llama", "plain"])
def test_tokens_around_a_text(
    kind: dict[str, Any],
    stated: dict[str, Any],
    template: str,
    judged: bool,
    tokenizers: Path,
    tmp_path: Path,
) -> None:
    """They are those of transformers, or the error names the key and the way out."""
    files = {"tokenizer_config.json": kind | {"bos_token": "<s>"} | stated}
    directory = make(tmp_path / "t", tokenizers, files, template)
    options = TokenizerOptions(str(directory), special_tokens=True)
    theirs = [AutoTokenizer.from_pretrained(str(directory))(text).input_ids for text in TEXTS]
    found = result_of(options)
    if isinstance(found, ConfigError):
        assert not judged
        assert ("add_bos_token" if stated else "tokenizer_class") in str(found)
        assert f"give {directory}/tokenizer.json to follow that file alone" in str(found)
    else:
        assert found == theirs
    alone = TokenizerOptions(str(directory / "tokenizer.json"), special_tokens=True)
    assert tokens_of(alone)[0][:1] == ([1] if "<s>" in template else tokens_of(alone)[0][:1])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config.json": PLAIN | {"pad_token": "[NEW]"}}, r"pad_token '\[NEW\]'"),
        (
            {"tokenizer_config.json": PLAIN | {"additional_special_tokens": ["<extra>"]}},
            "additional_special_tokens '<extra>'",
        ),
        (
            {"tokenizer_config.json": PLAIN | {"extra_special_tokens": {"image": "<extra>"}}},
            "extra_special_tokens '<extra>'",
        ),
        (
            {"special_tokens_map.json": {"unk_token": {"content": "[UNK]"}}},
            r"special_tokens_map.json: unk_token '\[UNK\]'",
        ),
        ({"added_tokens.json": {"<extra>": 600}}, "added_tokens.json: '<extra>' with id 600"),
        (
            {
                "tokenizer_config.json": PLAIN
                | {"added_tokens_decoder": {"600": {"content": "<extra>"}}}
            },
            "added_tokens_decoder '<extra>' is no added token",
        ),
        (
            {
                "tokenizer_config.json": PLAIN
                | {"added_tokens_decoder": {"1": {"content": "<s>", "lstrip": True}}}
            },
            "added_tokens_decoder '<s>' has another lstrip",
        ),
        (
            {"tokenizer_config.json": PLAIN | {"added_tokens_decoder": {"7": {"content": "<s>"}}}},
            "added_tokens_decoder '<s>' has id 7 there, 1 in",
        ),
        ({"tokenizer_config.json": PLAIN | {"add_prefix_space": True}}, "add_prefix_space is true"),
        (
            {"tokenizer_config.json": PLAIN | {"split_special_tokens": True}},
            "split_special_tokens is true",
        ),
        (
            {"tokenizer_config.json": PLAIN | {"auto_map": {"AutoTokenizer": ["a.B", None]}}},
            "auto_map names code",
        ),
        ({"tokenizer_config.json": [1]}, "is not an object"),
    ],
)
def test_a_key_that_changes_tokens_is_refused(
    files: dict[str, Any], said: str, judged: bool, tokenizers: Path, tmp_path: Path
) -> None:
    """It is named, with or without a judge."""
    directory = make(tmp_path / "t", tokenizers, files)
    with pytest.raises(ConfigError, match=said):
        tokens_of(TokenizerOptions(str(directory)))


def test_an_unknown_class_needs_the_judge(judged: bool, tokenizers: Path, tmp_path: Path) -> None:
    """An unknown class needs the judge, which takes it for the tokenizer of the file."""
    config = PLAIN | {"tokenizer_class": "MyTokenizer"}
    directory = make(tmp_path / "t", tokenizers, {"tokenizer_config.json": config})
    options = TokenizerOptions(str(directory))
    found = result_of(options)
    if judged:
        assert isinstance(found, list)
    else:
        assert "'MyTokenizer' may change tokens; install transformers" in str(found)


@pytest.mark.few(1)
def test_a_map_names_the_end_of_documents(judged: bool, tokenizers: Path, tmp_path: Path) -> None:
    """A map names the end of documents; if two files name two, it must be chosen."""
    files: dict[str, Any] = {"special_tokens_map.json": {"eos_token": "<s>"}}
    directory = make(tmp_path / "t", tokenizers, files)
    assert find_tokenizer(TokenizerOptions(str(directory))).end == "<s>"
    files["tokenizer_config.json"] = PLAIN
    make(directory, tokenizers, files)
    with pytest.raises(ConfigError, match=r"eos_token is .* name the right one with --eod"):
        find_tokenizer(TokenizerOptions(str(directory)))
    assert find_tokenizer(TokenizerOptions(str(directory), eod="<s>")).end is not None


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


@pytest.mark.few(1)
def test_special_tokens_of_a_class(judged: bool, tokenizers: Path, tmp_path: Path) -> None:
    """A class adds tokens that no file names; they are compared, or refused by the key."""
    config = {name: value for name, value in LLAMA.items() if name != "unk_token"}
    directory = make(tmp_path / "t", tokenizers, {"tokenizer_config.json": config})
    found = result_of(TokenizerOptions(str(directory)))
    if judged:
        theirs = AutoTokenizer.from_pretrained(str(directory)).get_added_vocab()
        assert isinstance(found, list) == ("<unk>" not in theirs)
    else:
        assert "no file names unk_token, and tokenizer_class 'LlamaTokenizer' then adds" in str(
            found
        )


@pytest.mark.few(1)
def test_a_class_that_only_the_model_names(judged: bool, tokenizers: Path, tmp_path: Path) -> None:
    """config.json alone decides it, and so how text is cut."""
    directory = make(tmp_path / "t", tokenizers, {"config.json": {"model_type": "qwen2"}})
    theirs = AutoTokenizer.from_pretrained(str(directory))
    found = result_of(TokenizerOptions(str(directory)))
    if judged and not isinstance(found, ConfigError):
        assert found == [theirs.encode(text, add_special_tokens=False) for text in TEXTS]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}}, "Qwen2|other"),
        ({"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"}}, "Roberta|other"),
        ({"config.json": {"model_type": "roberta"}}, "roberta|other|cannot load"),
        ({"added_tokens.json": {"<extra>": 900}}, "added_tokens.json: '<extra>' with id 900"),
        (
            {"tokenizer_config.json": {"eos_token": "<|im_end|>"}},
            r"eos_token '<\|im_end\|>' is no added token",
        ),
    ],
)
def test_files_beside_a_vocabulary_and_merges(
    files: dict[str, Any], said: str, judged: bool, tokenizers: Path, tmp_path: Path
) -> None:
    """A directory without tokenizer.json is read as training reads it, too."""
    del judged
    model = json.loads((tokenizers / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": 700}))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=said):
        find_tokenizer(TokenizerOptions(str(tmp_path)))
    alone = find_tokenizer(TokenizerOptions(str(tmp_path / "vocab.json")))
    assert alone.end in ("<|endoftext|>", "<|im_end|>")


def test_files_beside_a_sentencepiece_model(tmp_path: Path) -> None:
    """They are refused; the model alone can be given."""
    (tmp_path / "tokenizer.model").write_bytes(b"model")
    assert find_tokenizer(TokenizerOptions(str(tmp_path))).kind == "sentencepiece"
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    with pytest.raises(ConfigError, match=r"reads tokenizer_config.json beside tokenizer\.model"):
        find_tokenizer(TokenizerOptions(str(tmp_path)))
    alone = TokenizerOptions(str(tmp_path / "tokenizer.model"))
    assert find_tokenizer(alone).kind == "sentencepiece"
