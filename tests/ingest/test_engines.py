"""A faster engine makes the tokens of the tokenizer's own library, or leaves texts to it."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from distcache.corpus.receipt import read_receipt
from distcache.errors import ConfigError, CorpusError
from distcache.ingest import gigatoken_engine
from distcache.ingest.engine_trials import CLASSES, WORDS
from distcache.ingest.find_tokenizer import find_tokenizer, make_tokenizer
from distcache.ingest.gigatoken_engine import Gigatoken
from distcache.ingest.huggingface import HuggingFace
from distcache.ingest.pipeline import IngestOutcome, ingest
from distcache.ingest.read_options import TextOptions
from distcache.ingest.tokenizer import Encoded, EnginesDiffer, TokenizerOptions
from distcache.ingest.tokenizer import Tokenizer as AnyTokenizer
from distcache.ranks.communicator import SerialCommunicator
from tests.hard_texts import KINDS, hard_texts, train
from tests.texts import END, write_jsonl

FAST = ("gpt2", "llama3", "qwen", "o200k", "llama2", "metaspace")
NEW = "\U00016ebb"  # a letter since Unicode 17


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Train a tokenizer of each kind when it is needed."""
    directory = tmp_path_factory.mktemp("kinds")

    @cache
    def file(kind: str) -> Path:
        return train(directory / f"{kind}.json", kind, itertools.islice(hard_texts(1), 100), 800)

    return file


@pytest.fixture(scope="module")
def engines(files: Callable[[str], Path]) -> Callable[..., AnyTokenizer]:
    """Load each tokenizer once."""

    @cache
    def load(kind: str, engine: Any = "auto", special: bool | None = None) -> AnyTokenizer:
        return load_file(files(kind), engine, special)

    return load


def load_file(path: Path, engine: Any = "auto", special: bool | None = None) -> AnyTokenizer:
    """Load a tokenizer."""
    options = TokenizerOptions(str(path), special_tokens=special, engine=engine)
    return make_tokenizer(find_tokenizer(options), options)


def lists(found: Encoded) -> list[list[int]]:
    """Return the tokens of each text."""
    return [ids.tolist() for ids in found.split()]


@pytest.mark.parametrize("kind", FAST)
def test_tokens_are_equal(kind: str, engines: Callable[..., AnyTokenizer]) -> None:
    """Of hard texts, most of which gigatoken encodes."""
    texts = list(itertools.islice(hard_texts(), 300))
    found = engines(kind).encode(texts)
    assert lists(found) == lists(engines(kind, "tokenizers").encode(texts))
    assert engines(kind).engine == "gigatoken 0.10.0"
    assert 0 < found.by_library < len(texts) / 2


@pytest.mark.parametrize("kind", FAST)
@given(
    texts=st.lists(
        st.text() | st.lists(st.sampled_from([*CLASSES, *WORDS, END, "<s>", NEW])).map("".join),
        max_size=8,
    )
)
def test_any_texts(kind: str, engines: Callable[..., AnyTokenizer], texts: list[str]) -> None:
    """Whatever they hold; also with tokens around each."""
    for special in (False, True):
        theirs = engines(kind, "tokenizers", special).encode(texts)
        assert lists(engines(kind, "gigatoken", special).encode(texts)) == lists(theirs)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FAST])
def test_models_that_gigatoken_lacks(
    kind: str, files: Callable[[str], Path], engines: Callable[..., AnyTokenizer]
) -> None:
    """Are found out before a text is read: auto takes the library, and says why."""
    texts = list(itertools.islice(hard_texts(), 20))
    found = engines(kind)
    assert "gigatoken has no model" in found.engine
    assert lists(found.encode(texts)) == lists(engines(kind, "tokenizers").encode(texts))
    with pytest.raises(ConfigError, match=r"--engine gigatoken.*no model"):
        load_file(files(kind), "gigatoken")


def changes() -> Iterator[tuple[str, str, Any]]:
    """Yield what changes a tokenizer so that gigatoken might pass over it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}"}, "behavior": "Isolated"}
    last = byte_level | {"use_regex": False}
    yield "dropout", "/model/dropout", 0.5
    yield "suffix", "/model/end_of_word_suffix", "</w>"
    yield "nothing", "/pre_tokenizer", None
    yield "no pattern", "/pre_tokenizer", last
    yield (
        "digits",
        "/pre_tokenizer",
        {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, last],
        },
    )
    yield (
        "two patterns",
        "/pre_tokenizer",
        {"type": "Sequence", "pretokenizers": [split, byte_level]},
    )
    yield (
        "inverted",
        "/pre_tokenizer",
        {
            "type": "Sequence",
            "pretokenizers": [split | {"invert": True}, last],
        },
    )
    yield (
        "removed",
        "/pre_tokenizer",
        {
            "type": "Sequence",
            "pretokenizers": [split | {"behavior": "Removed"}, last],
        },
    )
    yield "unknown pattern", "/pre_tokenizer", {"type": "Sequence", "pretokenizers": [split, last]}
    yield "normalizer", "/normalizer", {"type": "Lowercase"}
    yield "form", "/added_tokens", [{"id": 1, "content": ""}]
    yield "whole words", "/added_tokens/0/single_word", True
    yield "order of merges", "/model/merges", "reversed"


@pytest.mark.parametrize(("path", "value"), [pytest.param(*c[1:], id=c[0]) for c in changes()])
def test_what_gigatoken_might_pass_over(
    path: str, value: Any, files: Callable[[str], Path], tmp_path: Path
) -> None:
    """Leads to the library, or to the same tokens."""
    content = json.loads(files("gpt2").read_text(encoding="utf-8"))
    *parents, name = path.split("/")[1:]
    place = content
    for parent in parents:
        place = place[int(parent) if parent.isdigit() else parent]
    place[name] = place[name][::-1] if value == "reversed" else value
    changed = tmp_path / "tokenizer.json"
    changed.write_text(json.dumps(content), encoding="utf-8")
    try:
        Tokenizer.from_file(str(changed))
    except Exception:  # noqa: BLE001  # whatever the library says
        with pytest.raises(ConfigError, match="is not a tokenizer"):
            load_file(changed)
        return
    found = load_file(changed)
    if value != "reversed":
        assert isinstance(found, HuggingFace), found.engine
        return
    texts = list(itertools.islice(hard_texts(), 100))
    assert lists(found.encode(texts)) == lists(load_file(changed, "tokenizers").encode(texts))


def test_what_goes_to_the_library(engines: Callable[..., AnyTokenizer]) -> None:
    """Code points that differ, and the text of added tokens; and nothing else."""
    found = engines("llama3").encode(["plain", f"a{NEW}b", f"x{END}", "漢字 😀", "<s", ""])
    assert found.by_library == 2
    assert len(found.lengths) == 6
    assert found.lengths[5] == 0


def test_what_the_library_refuses(engines: Callable[..., AnyTokenizer]) -> None:
    """Is refused."""
    for engine in ("tokenizers", "gigatoken"):
        with pytest.raises(ValueError, match="TextEncodeInput"):
            engines("gpt2", engine).encode(["fine", "\ud800"])


def test_what_only_gigatoken_refuses(
    files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goes to the library."""
    path = files("gpt2")
    found, theirs = load_file(path), load_file(path, "tokenizers")

    def refuse(*_: object) -> Encoded:
        raise ValueError("panic")

    monkeypatch.setattr(gigatoken_engine, "_encode", refuse)
    encoded = found.encode(["a", "b c"])
    assert lists(encoded) == lists(theirs.encode(["a", "b c"]))
    assert encoded.by_library == 2


def test_an_engine_that_grows_is_made_anew(
    files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And makes the same tokens."""
    loaded = []
    load = gigatoken_engine._load

    def counted(content: bytes) -> Any:
        loaded.append(content)
        return load(content)

    found = load_file(files("gpt2"))
    monkeypatch.setattr(gigatoken_engine, "_load", counted)
    texts = list(itertools.islice(hard_texts(), 40))
    theirs = lists(found.encode(texts))
    assert not loaded
    monkeypatch.setattr(gigatoken_engine, "CHARACTERS", 1)
    monkeypatch.setattr(gigatoken_engine, "GROWTH", -(1 << 40))
    for _ in range(3):
        assert lists(found.encode(texts)) == theirs
    assert len(loaded) >= 2


def test_threads(engines: Callable[..., AnyTokenizer]) -> None:
    """Encode side by side, each with a gigatoken of its own."""
    texts = list(itertools.islice(hard_texts(3), 200))
    theirs = lists(engines("qwen", "tokenizers").encode(texts))
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: lists(engines("qwen").encode(texts)), range(4), timeout=60)
        assert list(found) == [theirs] * 4


def test_a_difference_names_the_document(
    files: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends the ingest, also if invalid rows are to be skipped."""
    encode = gigatoken_engine._encode

    def wrong(engine: Any, texts: list[str]) -> Encoded:
        found = encode(engine, texts)
        bad = [place for place, text in enumerate(texts) if "bad document" in text]
        if bad:
            found.ids[found.lengths[: bad[0]].sum()] ^= 1
        return found

    monkeypatch.setattr(gigatoken_engine, "_encode", wrong)
    monkeypatch.setattr(gigatoken_engine, "COMPARED", 1)
    texts = [["one", "two"], [], ["three", "a bad document"], "four"]
    path = write_jsonl(tmp_path / "d.jsonl", texts)
    with pytest.raises(CorpusError, match=r"d\.jsonl: line 3.*gigatoken 0\.10\.0 and.*--engine"):
        run(path, files("gpt2"), tmp_path / "out", on_error="skip")


def run(path: Path, tokenizer: Path, out: Path, threads: int = 2, **fields: Any) -> IngestOutcome:
    """Ingest text with this process alone."""
    options = TokenizerOptions(str(tokenizer), engine=fields.pop("engine", "auto"))
    chosen = TextOptions(**fields)
    return ingest(SerialCommunicator(), [str(path)], str(out), chosen, options, threads)


def test_receipts_say_it(files: Callable[[str], Path], tmp_path: Path) -> None:
    """Which engine, its version and what went where, the same for any number of threads."""
    texts = [*itertools.islice(hard_texts(), 200), f"a{NEW}", f"b{END}"]
    path = write_jsonl(tmp_path / "d.jsonl", texts)
    for name, threads, engine in (("a", 1, "auto"), ("b", 3, "auto"), ("c", 2, "tokenizers")):
        run(path, files("llama3"), tmp_path / name, threads, engine=engine)
    first, second, third = (read_receipt(tmp_path / f"{name}.receipt.json") for name in "abc")
    assert first.engine is not None
    assert first.engine.name == "gigatoken"
    assert first.engine.version == first.versions["gigatoken"] == "0.10.0"
    assert 2 <= first.engine.by_library < 200
    assert first.engine == second.engine
    assert third.engine is None
    assert "gigatoken" not in third.versions
    assert first.tokenizer == third.tokenizer, "corpora of both may be blended"
    for suffix in (".bin", ".idx"):
        contents = {(tmp_path / (name + suffix)).read_bytes() for name in "abc"}
        assert len(contents) == 1


def test_some_are_compared(
    engines: Callable[..., AnyTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of texts that depends on nothing but the texts."""
    found = engines("gpt2")
    monkeypatch.setattr(gigatoken_engine, "COMPARED", 10)
    texts = [f"text {place}" * (place % 7) for place in range(1000)]
    counts = {found.encode(texts).compared for _ in range(3)}
    assert len(counts) == 1
    assert 50 < counts.pop() < 200


def test_differences_are_no_refusals(
    engines: Callable[..., AnyTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may skip what is refused, but not this."""
    monkeypatch.setattr(gigatoken_engine, "COMPARED", 1)
    found = engines("gpt2")
    assert isinstance(found, Gigatoken)
    encode = found._engines.encode

    def wrong(texts: list[str]) -> Encoded:
        return encode(texts)._replace(ids=np.zeros(encode(texts).lengths.sum(), np.int32))

    monkeypatch.setattr(found._engines, "encode", wrong)
    with pytest.raises(EnginesDiffer):
        found.encode(["some text"])


def test_without_gigatoken(files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Auto takes the library; asked for, it is an error that says what to install."""
    monkeypatch.delitem(sys.modules, "distcache.ingest.gigatoken_engine")
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert load_file(files("gpt2")).engine.endswith("since gigatoken is not installed")
    with pytest.raises(ConfigError, match="gigatoken is not installed; pip install"):
        load_file(files("gpt2"), "gigatoken")


def test_engines_are_for_hugging_face(tokenizers: Path) -> None:
    """Other tokenizers have their own library only."""
    for name in ("pieces.model", "r50k_base.tiktoken"):
        with pytest.raises(ConfigError, match="--engine gigatoken: is not for a"):
            load_file(tokenizers / name, "gigatoken")
