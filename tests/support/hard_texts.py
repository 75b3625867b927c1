"""Text that is hard to tokenize, and tokenizers of the usual kinds, to compare engines on."""

from __future__ import annotations

import functools
import itertools
import json
import random
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

# The patterns of Llama 3, Qwen 2 and GPT-4o, as their tokenizer.json have them.
_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS: Final = {
    "llama3": rf"{_WORDS}|\p{{N}}{{1,3}}{_REST}",
    "qwen": rf"{_WORDS}|\p{{N}}{_REST}",
    "o200k": rf"{_UPPER}*{_LOWER}+{_SHORT}|{_UPPER}+{_LOWER}*{_SHORT}|\p{{N}}{{1,3}}"
    + _REST.replace("[\\r\\n]*", "[\\r\\n/]*", 1),
}
# With gigatoken, and then those that it does not have.
KINDS: Final = ("gpt2", "llama3", "qwen", "o200k", "llama2", "metaspace", "wordpiece", "unigram")
SPECIAL: Final = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
SCRIPTS: Final = "aZéßжΩאدहிกあ漢가ႠᏣꙮ𐍈\U0001d49c😀"
LONGEST: Final = 5_000  # characters of a text to train on
LARGEST: Final = 200_000  # bytes of a file
LIBRARY: Final = sysconfig.get_path("stdlib")
SOME: Final = tuple(f"{LIBRARY}/{name}" for name in ("encodings", "html", "json", "lib-dynload"))
ALL: Final = (LIBRARY, sysconfig.get_path("purelib"), "/usr/share", "/usr/lib")
SEQUENCES: Final = (
    "👩‍👩‍👧‍👦",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "🇩🇪🇫🇷",
    "👍🏽",
    "☃️",
    "e\u0301\u0323",
    "한글",
    "ﷺ",
    "\u202eabc\u202c",
)


def train(path: Path, kind: str, texts: Iterable[str], size: int = 2000) -> Path:
    """Train a tokenizer of a kind, which puts a token before each text if it is asked to."""
    tokenizer, trainer = _untrained(kind, size)
    lines = (line for text in texts for line in text[:LONGEST].splitlines())
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] in SPECIAL
    ]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def _untrained(kind: str, size: int) -> tuple[Tokenizer, Any]:
    given: dict[str, Any] = {"vocab_size": size, "show_progress": False}
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer, trainers.WordPieceTrainer(special_tokens=SPECIAL, **given)
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Replace(Regex(r"[^\x00-\x7f]"), "?")  # few characters
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        return tokenizer, trainers.UnigramTrainer(
            special_tokens=SPECIAL, unk_token="<unk>", **given
        )
    if kind in ("llama2", "metaspace"):
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        if kind == "llama2":
            tokenizer.pre_tokenizer = None
            tokenizer.normalizer = normalizers.Sequence(
                [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            )
        spare = [f"<0x{byte:02X}>" for byte in range(256)]
        return tokenizer, trainers.BpeTrainer(
            special_tokens=[*SPECIAL, *spare], limit_alphabet=500, max_token_length=12, **given
        )
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind in PATTERNS:
        split = pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated")
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, last])
    if kind == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(
        special_tokens=SPECIAL, initial_alphabet=alphabet, **given
    )


def hard_texts(seed: int = 0, roots: tuple[str, ...] = SOME) -> Iterator[str]:
    """Yield texts without end: every block of Unicode, sequences, runs, files of all kinds."""
    chosen = random.Random(seed)
    makers = (_of_blocks, _of_sequences, _of_runs, _of_words, _of_bytes, _of_files, _of_files)
    paths = _files(roots)
    for make in itertools.cycle(makers):
        yield make(chosen, paths)


@functools.cache
def _files(roots: tuple[str, ...]) -> list[Path]:
    found = itertools.chain.from_iterable(Path(root).rglob("*") for root in roots)
    lasting = (path for path in found if "__pycache__" not in path.parts)
    regular = (path for path in lasting if path.is_file() and not path.is_symlink())
    return sorted(path for path in regular if path.stat().st_size < LARGEST)


def _of_blocks(chosen: random.Random, _: list[Path]) -> str:
    """Neighbouring code points, assigned or not, among spaces and letters."""
    begin = chosen.randrange(0, 0x110000 - 64)
    if chosen.random() < 0.7:
        begin = chosen.randrange(0, 0x20000)
    block = [chr(c) for c in range(begin, begin + 64) if not 0xD800 <= c < 0xE000]
    chosen.shuffle(block)
    glue = chosen.choice(["", " ", "\n", "a", "1", ".", "'", "\u0301", chosen.choice(SCRIPTS)])
    return glue.join(block)


def _of_sequences(chosen: random.Random, _: list[Path]) -> str:
    parts = [*SEQUENCES, *SCRIPTS, *SPECIAL, " ", "\n", "'s", "'LL", "don't"]
    return "".join(chosen.choices(parts, k=chosen.randrange(1, 200)))


def _of_runs(chosen: random.Random, _: list[Path]) -> str:
    parts = [*SCRIPTS, *" \t\n\r.-='1", "\u3000", "\x00", "ab", " a", "\r\n"]
    runs = (chosen.choice(parts) * int(chosen.paretovariate(0.5)) for _ in range(6))
    return "".join(run[:20_000] for run in runs)


def _of_words(chosen: random.Random, _: list[Path]) -> str:
    words = (
        "".join(chosen.choices(SCRIPTS + "abcdefghij", k=chosen.randrange(1, 12)))
        for _ in range(chosen.randrange(1, 300))
    )
    return chosen.choice([" ", "  ", "\n", "\t", "-"]).join(words)


def _of_bytes(chosen: random.Random, paths: list[Path]) -> str:
    """Binary dressed as text."""
    content = _read(chosen.choice(paths)) or chosen.randbytes(1000)
    return content.decode(chosen.choice(["latin-1", "cp437", "utf-16-le"]), errors="replace")


def _of_files(chosen: random.Random, paths: list[Path]) -> str:
    return _read(chosen.choice(paths)).decode("utf-8", errors="replace")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
