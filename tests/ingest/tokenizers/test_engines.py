"""A faster engine makes the tokens of the tokenizer's own library, or leaves texts to it."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import gigatoken
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.corpus.receipt import read_receipt
from distcache.errors import ConfigError, DistcacheError
from distcache.ingest.pipeline import IngestOutcome
from distcache.ingest.tokenizers.find import find_tokenizer, make_tokenizer
from distcache.ingest.tokenizers.gigatoken import engine as gigatoken_engine
from distcache.ingest.tokenizers.gigatoken.trials import CLASSES, WORDS
from distcache.ingest.tokenizers.huggingface import HuggingFace
from distcache.ingest.tokenizers.tokenizer import Encoded, EnginesDiffer, TokenizerOptions
from distcache.ingest.tokenizers.tokenizer import Tokenizer as AnyTokenizer
from tests.support import here
from tests.support.hard_texts import KINDS, PATTERNS, hard_texts, train
from tests.support.texts import END, write_jsonl

pytestmark = pytest.mark.slow


class SpoiltLibrary:
    """Gigatoken itself, but for what a test does to it.

    Attributes
    ----------
    wrong : callable
        Returns whether a text gets a wrong token.
    refuses : bool
        Whether every text is refused.
    loaded : int
        Tokenizers that were made.
    """

    def __init__(self) -> None:
        self.wrong: Callable[[str], bool] = lambda _: False
        self.refuses = False
        self.loaded = 0
        self._original = gigatoken.Tokenizer

    def from_json(self, content: bytes) -> SpoiltLibrary.Loaded:
        """Take the place of the class."""
        self.loaded += 1
        return self.Loaded(self, self._original.from_json(content))

    class Loaded:
        """A tokenizer of the library."""

        def __init__(self, library: SpoiltLibrary, own: Any) -> None:
            self._library = library
            self._own = own

        def encode(self, text: str) -> Any:
            """Encode a text, rightly or not."""
            if self._library.refuses:
                raise ValueError("panic")
            found = np.array(self._own.encode(text), np.uint32)
            if self._library.wrong(text) and len(found):
                found[-1] ^= 1
            return found

        def encode_batch(self, texts: list[str], **options: Any) -> Any:
            """Encode many texts."""
            if self._library.refuses:
                raise ValueError("panic")
            assert not any(map(self._library.wrong, texts)), "those are encoded one by one"
            return self._own.encode_batch(texts, **options)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SpoiltLibrary:
    """The library, which tests can spoil."""
    spoilt = SpoiltLibrary()
    monkeypatch.setattr(gigatoken, "Tokenizer", spoilt)
    return spoilt


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let both encode one of so many texts."""
    return lambda of: monkeypatch.setattr(gigatoken_engine, "COMPARED_OF", of)


FAST = ("gpt2", "llama3", "qwen", "o200k", "llama2", "metaspace")
VERSION = importlib.metadata.version("gigatoken")
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


@pytest.mark.few(3)
@pytest.mark.parametrize("single", [gigatoken_engine.SINGLE_TEXTS, 0])
@pytest.mark.parametrize("kind", FAST)
def test_tokens_are_equal(
    kind: str,
    single: int,
    engines: Callable[..., AnyTokenizer],
    limit: Callable[..., None],
) -> None:
    """Tokens are equal of hard texts, most of which gigatoken encodes, one by one or together."""
    engine = engines(kind)
    limit("distcache.ingest.tokenizers.gigatoken.engine", SINGLE_TEXTS=single)
    texts = list(itertools.islice(hard_texts(), 150))
    found = engine.encode(texts)
    assert lists(found) == lists(engines(kind, "tokenizers").encode(texts))
    assert engines(kind).engine == f"gigatoken {VERSION}"
    assert 0 < found.by_library < len(texts) / 2


@pytest.mark.few(2)
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


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FAST])
def test_models_that_gigatoken_lacks(
    kind: str, files: Callable[[str], Path], engines: Callable[..., AnyTokenizer]
) -> None:
    """They are found out before a text is read: auto takes the library, and says why."""
    texts = list(itertools.islice(hard_texts(), 20))
    found = engines(kind)
    assert "gigatoken has no model" in str(found.note)
    assert lists(found.encode(texts)) == lists(engines(kind, "tokenizers").encode(texts))
    with pytest.raises(ConfigError, match=r"--engine gigatoken.*no model"):
        load_file(files(kind), "gigatoken")


LAST = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPLIT = {
    "type": "Split",
    "pattern": {"Regex": PATTERNS["qwen"]},
    "behavior": "Isolated",
    "invert": False,
}
DIGITS = {"type": "Digits", "individual_digits": True}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a sequence of pre-tokenizers."""
    return {"type": "Sequence", "pretokenizers": [*parts]}


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model/dropout", 0.5, "has no dropout"),
        ("model/end_of_word_suffix", "</w>", "has no end_of_word_suffix"),
        ("pre_tokenizer", None, "always has a pre-tokenizer"),
        ("pre_tokenizer", LAST, "ByteLevel without a pattern"),
        ("pre_tokenizer", sequence(DIGITS, LAST), "no pre-tokenizer Digits"),
        ("pre_tokenizer", sequence(SPLIT, LAST | {"use_regex": True}), "ByteLevel like this"),
        ("pre_tokenizer", sequence(SPLIT, LAST | {"add_prefix_space": True}), "ByteLevel like"),
        ("pre_tokenizer", sequence(SPLIT, DIGITS), "no pre-tokenizer Digits like this"),
        ("pre_tokenizer", sequence(SPLIT | {"invert": True}, LAST), "only isolates"),
        ("pre_tokenizer", sequence(SPLIT | {"behavior": "Removed"}, LAST), "only isolates"),
        ("pre_tokenizer", sequence(SPLIT | {"pattern": {"String": "a"}}, LAST), "tokenizer Split"),
        ("pre_tokenizer", sequence(SPLIT | {"pattern": {"Regex": "a"}}, LAST), "refuses it"),
        ("normalizer", {"type": "Lowercase"}, "refuses it"),
        ("added_tokens/0/single_word", True, "no whole or normalized words as '<unk>'"),
        ("added_tokens/0/content", " a", "added token ' a' by mistake"),
        ("added_tokens/0/id", 3_000_000_000, "all ids up to 3000000000"),
        ("model/vocab/漢字", 5000, "'漢字' in its vocabulary stands for no bytes"),
        ("model/vocab/zk", 300, "id twice"),
        ("model/merges/0", ["a", "b"], "id twice"),
    ],
)
def test_what_gigatoken_might_pass_over(
    path: str, value: Any, reason: str, files: Callable[[str], Path], tmp_path: Path
) -> None:
    """It is found out before a text is read: auto takes the library, and says why."""
    content = json.loads(files("gpt2").read_text(encoding="utf-8"))
    *parents, name = path.split("/")
    place, parent = content, ""
    for parent in parents:
        place = place[int(parent) if parent.isdigit() else parent]
    if name == "content":
        content["pre_tokenizer"]["add_prefix_space"] = True
    if parent == "merges":
        name, value = 0, place[1]
    place[name] = value
    changed = tmp_path / "tokenizer.json"
    changed.write_text(json.dumps(content), encoding="utf-8")
    found = load_file(changed)
    assert isinstance(found, HuggingFace)
    assert found.note is not None
    assert reason in found.note


def test_what_normalizing_may_make(files: Callable[[str], Path], tmp_path: Path) -> None:
    """An added token beyond ASCII leaves a tokenizer that normalizes to the library."""
    content = json.loads(files("qwen").read_text(encoding="utf-8"))
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": 5000, "content": "schön"})
    changed = tmp_path / "tokenizer.json"
    changed.write_text(json.dumps(content), encoding="utf-8")
    found = load_file(changed)
    assert "'schön' by mistake" in str(found.note)
    theirs = load_file(changed, "tokenizers").encode(["scho\u0308n"])
    assert lists(found.encode(["scho\u0308n"])) == lists(theirs)


def test_very_long_runs(engines: Callable[..., AnyTokenizer], limit: Callable[..., None]) -> None:
    """They go to the library, which refuses some of them; long texts do not."""
    limit("distcache.ingest.tokenizers.gigatoken.engine", MAX_RUN_CHARACTERS=100)
    texts = [" " * 201, "a" * 99 + " b", "x " + "b" * 200, "some words " * 100]
    assert engines("llama3").encode(texts).by_library == 2


def test_merges_in_another_order(files: Callable[[str], Path], tmp_path: Path) -> None:
    """They have other ranks than their tokens have ids."""
    content = json.loads(files("gpt2").read_text(encoding="utf-8"))
    content["model"]["merges"].reverse()
    changed = tmp_path / "tokenizer.json"
    changed.write_text(json.dumps(content), encoding="utf-8")
    texts = list(itertools.islice(hard_texts(), 60))
    found = load_file(changed).encode(texts)
    assert lists(found) == lists(load_file(changed, "tokenizers").encode(texts))


@pytest.mark.parametrize("text", ["~}", "\u00e9", "1" * 300, "\t\t"])
def test_a_difference_in_trials(
    text: str, files: Callable[[str], Path], library: SpoiltLibrary
) -> None:
    """A difference in trials leaves all texts to the library."""
    library.wrong = lambda trial: text in trial
    found = load_file(files("gpt2"))
    assert found.note is not None
    assert "makes other tokens of a trial" in found.note
    with pytest.raises(ConfigError, match=r"--engine gigatoken.*other tokens of a trial"):
        load_file(files("gpt2"), "gigatoken")


def test_what_goes_to_the_library(engines: Callable[..., AnyTokenizer]) -> None:
    """Code points that differ, and the text of added tokens; and nothing else."""
    found = engines("llama3").encode(["plain", f"a{NEW}b", f"x{END}", "漢字 😀", "<s", ""])
    assert found.by_library == 2
    assert len(found.lengths) == 6
    assert found.lengths[5] == 0


def test_what_the_library_refuses(engines: Callable[..., AnyTokenizer]) -> None:
    """What the library refuses is refused."""
    for engine in ("tokenizers", "gigatoken"):
        with pytest.raises(ValueError, match="TextEncodeInput"):
            engines("gpt2", engine).encode(["fine", "\ud800"])


@pytest.mark.parametrize("kind", ["gpt2", "metaspace"])
def test_what_only_gigatoken_refuses(
    kind: str, files: Callable[[str], Path], library: SpoiltLibrary
) -> None:
    """What only gigatoken refuses goes to the library."""
    path = files(kind)
    found, theirs = load_file(path), load_file(path, "tokenizers")
    library.refuses = True
    texts = ["a", "b c", "\U00050000"]  # the last one has a code point that was never compared
    for _ in range(3):
        encoded = found.encode(texts)
        assert lists(encoded) == lists(theirs.encode(texts))
        assert encoded.by_library == 3
    library.refuses = False
    assert found.encode(texts).by_library == 1  # that code point stays with the library


def test_engines_that_have_grown_are_made_anew(
    files: Callable[[str], Path], library: SpoiltLibrary, limit: Callable[..., None]
) -> None:
    """Whenever they have grown again; the tokens are the same."""
    found = load_file(files("gpt2"))
    texts = ["some text", "and more " * 200]
    theirs, before = lists(found.encode(texts)), library.loaded
    limit("distcache.ingest.tokenizers.gigatoken.engine", CHARACTERS=1000)
    assert lists(found.encode(texts)) == theirs
    assert library.loaded == before
    limit("distcache.ingest.tokenizers.gigatoken.engine", GROWTH=-(1 << 40))  # any size is more
    for _ in range(3):
        assert lists(found.encode(texts)) == theirs
    assert library.loaded == before + 2


@pytest.mark.more
def test_threads(engines: Callable[..., AnyTokenizer]) -> None:
    """Encode side by side."""
    texts = list(itertools.islice(hard_texts(3), 200))
    theirs = lists(engines("qwen", "tokenizers").encode(texts))
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: lists(engines("qwen").encode(texts)), range(4), timeout=60)
        assert list(found) == [theirs] * 4


def test_a_difference_names_the_document(
    files: Callable[[str], Path],
    library: SpoiltLibrary,
    compare: Callable[[int], None],
    tmp_path: Path,
) -> None:
    """And ends the ingest, also if invalid rows are to be skipped."""
    library.wrong = lambda text: "bad document" in text
    compare(1)
    texts = [["one", "two"], [], ["three", "a bad document"], "four"]
    path = write_jsonl(tmp_path / "d.jsonl", texts)
    with pytest.raises(
        DistcacheError, match=r"d\.jsonl: line 3.*gigatoken .* and.*--engine"
    ) as found:
        run(path, files("gpt2"), tmp_path / "out", 1, on_error="skip")
    assert found.value.exit_code == 1, "the input is sound"


def run(path: Path, tokenizer: Path, out: Path, threads: int = 2, **fields: Any) -> IngestOutcome:
    """Ingest text with this process alone."""
    options = TokenizerOptions(str(tokenizer), engine=fields.pop("engine", "auto"))
    return here.ingest_text([path], options, out, threads, **fields)


def test_receipts_say_it(
    files: Callable[[str], Path], tmp_path: Path, compare: Callable[[int], None]
) -> None:
    """Which engine, its version and what went where, the same for any number of threads."""
    compare(10)
    texts = [*itertools.islice(hard_texts(), 100), f"a{NEW}", f"b{END}"]
    path = write_jsonl(tmp_path / "d.jsonl", texts)
    for name, threads, engine in (("a", 1, "auto"), ("b", 3, "auto"), ("c", 2, "tokenizers")):
        run(path, files("llama3"), tmp_path / name, threads, engine=engine)
    first, second, third = (read_receipt(tmp_path / f"{name}.receipt.json") for name in "abc")
    assert first.engine is not None
    assert first.engine.name == "gigatoken"
    assert first.engine.version == first.versions["gigatoken"] == VERSION
    assert 2 <= first.engine.by_library < 100
    assert 0 < first.engine.compared < 50
    assert first.engine == second.engine
    assert third.engine is None
    assert "gigatoken" not in third.versions
    assert first.tokenizer == third.tokenizer, "corpora of both may be blended"
    for suffix in (".bin", ".idx"):
        contents = {(tmp_path / (name + suffix)).read_bytes() for name in "abc"}
        assert len(contents) == 1


def test_some_are_compared(
    engines: Callable[..., AnyTokenizer], compare: Callable[[int], None]
) -> None:
    """A share of texts that depends on nothing but the texts."""
    found = engines("gpt2")
    compare(10)
    texts = [f"text {place}" * (place % 7) for place in range(1000)]
    counts = {found.encode(texts).compared for _ in range(3)}
    assert len(counts) == 1
    assert 50 < counts.pop() < 200


def test_differences_are_no_refusals(
    files: Callable[[str], Path], library: SpoiltLibrary, compare: Callable[[int], None]
) -> None:
    """A reader may skip what is refused, but not this."""
    compare(1)
    found = load_file(files("gpt2"), "gigatoken")
    library.wrong = lambda text: text == "some text"
    with pytest.raises(EnginesDiffer):
        found.encode(["some text"])


def test_without_gigatoken(files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Auto takes the library; asked for, it is an error that says what to install."""
    monkeypatch.delitem(sys.modules, "distcache.ingest.tokenizers.gigatoken.engine")
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert "gigatoken cannot be imported" in str(load_file(files("gpt2")).note)
    with pytest.raises(ConfigError, match=r"gigatoken cannot be imported.*pip install"):
        load_file(files("gpt2"), "gigatoken")


def test_engines_are_for_hugging_face(tokenizers: Path) -> None:
    """Other tokenizers have their own library only."""
    for name in ("pieces.model", "ranks.tiktoken"):
        options = TokenizerOptions(str(tokenizers / name), pattern="v1", engine="gigatoken")
        with pytest.raises(ConfigError, match="--engine gigatoken: is not for a"):
            make_tokenizer(find_tokenizer(options), options)
