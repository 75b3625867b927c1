"""Conversations become the tokens and the losses that transformers makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import read_receipt
from distcache.edit.source_readback import read_back
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.ingest.inputs import TextOptions
from distcache.ingest.pipeline import ingest
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.ranks.communicator import Communicator
from tests.ingest.test_text import Noting
from tests.support import here
from tests.support.here import ALONE
from tests.support.texts import read_corpus, write_jsonl
from tests.support.threads import run_ranks

pytestmark = pytest.mark.slow

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% else %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
)
PLAIN_ENDS = (
    "{{ bos_token }}\n{%- for m in messages %}\n    {%- if m.role == 'assistant' %}\n"
    "        {%- generation %}\n            {{- m.content }}\n        {%- endgeneration %}\n"
    "    {%- else %}\n        {{- m.role + ': ' + m.content }}\n    {%- endif %}\n{%- endfor %}"
)
FIRST = (
    "  {% for m in messages %}\n{% generation %}\n{{ m.content }}\n {% endgeneration %}\n"
    "<|im_start|>{% endfor %}\n"
)
TOOLS = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}"
    "{{ m.role }}{% if m.role == 'assistant' %}{%- generation -%} {{ m.content }}"
    "{% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>"
    "{%- endgeneration +%} x {% else %}{{ m.content }}{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "plain ends": PLAIN_ENDS, "first": FIRST, "tools": TOOLS}
WORDS = [
    "the",
    "quick",
    "fox",
    "é",
    "日本",
    "\n",
    "  ",
    "🙂",
    "<think>",
    "x",
    "<|im_end|>",
    "{{ a }}",
]
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the fox"}]


def write_tokenizer(directory: Path, template: str | None, *, trims: bool = False) -> Path:
    """Write a tokenizer's directory; one that trims leaves blanks out of its offsets."""
    directory.mkdir(exist_ok=True)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|im_start|>", "<|im_end|>", "<s>", "<eos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(["the quick brown fox says hello to user and assistant"] * 50, trainer)
    bpe.post_processor = (
        processors.ByteLevel(trim_offsets=True)
        if trims
        else processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    )
    bpe.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<eos>",
    }
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def random_chats(count: int, seed: int) -> list[list[dict[str, Any]]]:
    """Return conversations of words that tokenizers and templates find hard."""
    chosen = random.Random(seed)
    chats = []
    for _ in range(count):
        roles = ["system"] * (chosen.random() < 0.3)
        roles += ["user", "assistant"] * chosen.randrange(1, 4)
        chats.append([{"role": role, "content": _text(chosen)} for role in roles])
        if chosen.random() < 0.3:
            chats[-1][-1]["tool_calls"] = [{"name": "f", "arguments": {"x": 1}}]
    return chats


def _text(chosen: random.Random) -> str:
    return " ".join(chosen.choice(WORDS) for _ in range(chosen.randrange(1, 12)))


def theirs(
    directory: Path, chats: Sequence[Any], tools: Any = None
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens and masks that transformers makes of conversations."""
    loaded = AutoTokenizer.from_pretrained(str(directory))
    found = [
        loaded.apply_chat_template(
            chat, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        for chat in chats
    ]
    return [row["input_ids"] for row in found], [row["assistant_masks"] for row in found]


def ours(prefix: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens and the losses of each document of a corpus, which has one sequence."""
    tokens = [sequence.tolist() for (sequence,) in read_corpus(prefix)]
    losses = np.fromfile(loss_path(str(prefix)), np.uint8)
    return tokens, [part.tolist() for part in np.split(losses, np.cumsum([*map(len, tokens)])[:-1])]


def run(words: Sequence[Path], directory: Path, out: Path, **fields: Any) -> Any:
    """Ingest conversations with this process alone."""
    chosen = {name: fields.pop(name) for name in ("eod", "chat_template") if name in fields}
    tokenizer = TokenizerOptions(str(directory), **chosen)
    return here.ingest_text(words, tokenizer, out, messages="messages", **fields)


@pytest.mark.few(4)
@pytest.mark.parametrize("trims", [False, True], ids=["whole offsets", "trimmed offsets"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_losses_are_those_of_transformers(
    name: str, trims: bool, tmp_path: Path
) -> None:
    """A token has a loss if a character of it is enclosed, also the first of a conversation."""
    directory = write_tokenizer(tmp_path / "t", TEMPLATES[name], trims=trims)
    chats = random_chats(300, 1)
    path = write_jsonl(tmp_path / "a.jsonl", chats, "messages")
    run([path], directory, tmp_path / "out")
    tokens, masks = theirs(write_tokenizer(tmp_path / "their", TEMPLATES[name]), chats)
    assert ours(tmp_path / "out") == (tokens, masks)
    assert here.faults([tmp_path / "out"]) == ()


def test_tables_lines_and_ranks_make_the_same_corpus(tmp_path: Path) -> None:
    """A Parquet file has fields of other rows as nulls, and its tools may be JSON."""
    directory = write_tokenizer(tmp_path / "t", TOOLS)
    chats, tools = random_chats(200, 2), [{"name": "f", "default": "d"}]
    lines = tmp_path / "a.jsonl"
    rows = [{"messages": chat, "tools": tools} for chat in chats]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.table({"messages": pa.array(chats), "tools": [json.dumps(tools)] * len(chats)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    run([lines], directory, tmp_path / "lines")

    def rank(communicator: Communicator) -> None:
        words, out = [str(tmp_path / "a.parquet")], str(tmp_path / "table")
        options = TextOptions(messages="messages")
        ingest(communicator, words, out, options, TokenizerOptions(str(directory)))

    assert run_ranks(3, rank) == (3 * [None], [])
    assert ours(tmp_path / "lines") == theirs(directory, chats, tools)
    for suffix in (".bin", ".idx", ".loss"):
        made = [(tmp_path / (name + suffix)).read_bytes() for name in ("lines", "table")]
        assert made[0] == made[1]


def test_the_end_of_a_document_is_learned_if_the_token_before_it_is(tmp_path: Path) -> None:
    """An appended end has the loss of the token before it."""
    for name, template, expected in (("no", CHATML, 0), ("yes", PLAIN_ENDS, 1)):
        directory = write_tokenizer(tmp_path / f"{name}-t", template)
        path = write_jsonl(tmp_path / f"{name}.jsonl", [CHAT], "messages")
        run([path], directory, tmp_path / name, append_eod=True)
        (tokens,), (losses,) = ours(tmp_path / name)
        assert (tokens[-1], losses[-1]) == (3, expected)


def test_a_loss_everywhere_needs_no_mark_and_makes_no_mask(tmp_path: Path) -> None:
    """`--loss all` takes any template."""
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    directory = write_tokenizer(tmp_path / "t", None)
    (tmp_path / "mine.jinja").write_text(template)
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT], "messages")
    options = {"chat_template": str(tmp_path / "mine.jinja"), "loss": "all"}
    run([path], directory, tmp_path / "out", **options)
    assert not Path(loss_path(str(tmp_path / "out"))).exists()
    assert len(read_corpus(tmp_path / "out")) == 1


def test_documents_read_back_from_conversations(tmp_path: Path) -> None:
    """By the same template; with another one the documents cannot be read from their source."""
    directory = write_tokenizer(tmp_path / "t", CHATML)
    path = write_jsonl(tmp_path / "a.jsonl", random_chats(50, 3), "messages")
    out = str(tmp_path / "out")
    run([path], directory, tmp_path / "out")
    receipt = read_receipt(tmp_path / "out.receipt.json")
    assert read_back(ALONE, out, receipt, 20) == []
    write_tokenizer(directory, PLAIN_ENDS)
    with pytest.raises(CorpusError, match="is not the template of the ingest"):
        read_back(ALONE, out, receipt, 20)


WRONG: list[tuple[Any, str]] = [
    ([], "expected a list of messages"),
    ("hello", "expected a list of messages"),
    (
        [{"from": "human", "value": "x"}],
        "message 0 has no role that is a text; its fields are from",
    ),
    ([{}], "message 0 has no role that is a text; its fields are none"),
    ([{"role": 1, "content": "x"}], "message 0 has no role that is a text"),
    ([CHAT[0], "x"], "message 1 is not an object"),
    ([{"role": "user", "content": [{"text": "x"}]}], "the content of message 0 is not a text"),
    ([{"role": "user", "content": "a\ufdd0b"}], "has U+FDD0 or U+FDD1"),
    ([{"role": "wrong", "content": "x"}], "the chat template refuses it: no such role"),
    ([{"role": "user", "content": "\ud800"}], "has half of a surrogate pair"),
]


def test_a_wrong_conversation_ends_the_ingest_or_is_skipped(tmp_path: Path) -> None:
    """What is wrong with it is said."""
    refusing = (
        "{% if messages[0].role == 'wrong' %}{{ raise_exception('no such role') }}{% endif %}"
    )
    directory = write_tokenizer(tmp_path / "t", CHATML + refusing)
    rows = [CHAT, *(messages for messages, _ in WRONG), CHAT]
    path = write_jsonl(tmp_path / "a.jsonl", rows, "messages")
    with pytest.raises(CorpusError, match=r"a\.jsonl: line 2, byte \d+: expected a list"):
        run([path], directory, tmp_path / "out")
    outcome = run([path], directory, tmp_path / "out", on_error="skip")
    assert (outcome.rows, outcome.documents, outcome.skipped) == (len(rows), 2, len(WRONG))
    skipped = read_receipt(tmp_path / "out.receipt.json").skipped
    for found, (_, reason) in zip(skipped, WRONG, strict=True):
        assert reason in str(found)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "has no chat template; give one with --chat-template"),
        ("{{ messages[0].content }}", "does not enclose what the model writes"),
        (CHATML + "{{ strftime_now('%Y') }}", "writes today's date"),
    ],
)
def test_a_template_that_cannot_be_used(template: str | None, reason: str, tmp_path: Path) -> None:
    """It is refused before anything is read, with what to do."""
    directory = write_tokenizer(tmp_path / "t", template)
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT], "messages")
    with pytest.raises(ConfigError, match=reason):
        run([path], directory, tmp_path / "out")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}",
            "within another",
        ),
        (
            "{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}",
            "changes what it encloses",
        ),
        ("{% generation %}", "the chat template refuses it"),
    ],
)
def test_a_template_whose_marks_cannot_be_followed(
    template: str, reason: str, tmp_path: Path
) -> None:
    """It is said of the first conversation."""
    directory = write_tokenizer(tmp_path / "t", template)
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT], "messages")
    with pytest.raises(CorpusError, match=reason):
        run([path], directory, tmp_path / "out")


def test_marks_in_macros_are_followed(tmp_path: Path) -> None:
    """Transformers counts characters from the wrong place there."""
    template = (
        "{% macro turn(m) %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% endif %}<|im_end|>{% endmacro %}"
        "{% for m in messages %}{{ turn(m) }}{% endfor %}"
    )
    directory = write_tokenizer(tmp_path / "t", template)
    run([write_jsonl(tmp_path / "a.jsonl", [CHAT], "messages")], directory, tmp_path / "out")
    (tokens,), (losses,) = ours(tmp_path / "out")
    loaded = AutoTokenizer.from_pretrained(str(directory))
    learned = [token for token, loss in zip(tokens, losses, strict=True) if loss]
    assert loaded.decode(learned) == "the fox"


def test_conversations_without_any_loss(tmp_path: Path) -> None:
    """They are counted; a corpus of them alone is refused."""
    directory = write_tokenizer(tmp_path / "t", CHATML)
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT[:1]], "messages")
    with pytest.raises(CorpusError, match=r"no token of .* has a loss"):
        run([path], directory, tmp_path / "out")
    path = write_jsonl(tmp_path / "b.jsonl", [CHAT[:1], CHAT], "messages")
    progress = Noting()
    run([path], directory, tmp_path / "two", progress=progress)
    assert "1 sequence has no token with a loss" in progress.notes


def test_options_of_texts_are_refused_for_conversations(tmp_path: Path) -> None:
    """And the reverse; all of them are named."""
    path, out = write_jsonl(tmp_path / "a.jsonl", [CHAT], "messages"), tmp_path / "out"
    for_texts = {"sentences": "lines", "documents": "line", "text_key": "x", "format": "txt"}
    of_texts = TokenizerOptions("none", special_tokens=True, engine="gigatoken")
    with pytest.raises(ConfigError) as caught:
        here.ingest_text([path], of_texts, out, messages="messages", **for_texts)
    assert str(caught.value).startswith(
        "--text-key, --split-sentences, --txt-documents, --format txt, --add-special-tokens, "
        "--engine gigatoken: applies to texts"
    )
    of_chats = TokenizerOptions("none", chat_template="x")
    with pytest.raises(ConfigError, match="--chat-template, --loss: needs --messages FIELD"):
        here.ingest_text([path], of_chats, out, loss="all")


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["a list of templates", "files"])
def test_tools_may_have_a_template_of_their_own(way: str, tmp_path: Path) -> None:
    """As in transformers, which takes `tool_use` if a conversation has tools, also if none."""
    whole = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    tools = "TOOL {{ tools is none }} " + CHATML
    directory = write_tokenizer(tmp_path / "t", None)
    if way == "files":
        (directory / "chat_template.jinja").write_text(whole)
        (directory / "additional_chat_templates").mkdir()
        (directory / "additional_chat_templates" / "tool_use.jinja").write_text(tools)
    else:
        path = directory / "tokenizer_config.json"
        named = {"default": whole, "tool_use": tools}
        templates = [{"name": name, "template": text} for name, text in named.items()]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": templates}))
    given: list[Any] = [[{"name": "f"}], [], None]
    rows = [{"messages": CHAT} | ({} if x is None else {"tools": x}) for x in given]
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run([lines], directory, tmp_path / "out")
    found = [theirs(directory, [CHAT], x) for x in given]
    assert ours(tmp_path / "out") == tuple(
        [row for (row,) in column] for column in zip(*found, strict=True)
    )


def test_what_is_no_source_of_conversations(tmp_path: Path) -> None:
    """A tokenizer's file alone, a template that is missing, a column of texts, and a text file."""
    directory = write_tokenizer(tmp_path / "t", CHATML)
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT], "messages")
    with pytest.raises(ConfigError, match="is not a tokenizer's directory"):
        run([path], directory / "tokenizer.json", tmp_path / "out")
    with pytest.raises(NotReady, match=r"--chat-template .*: cannot be read"):
        run([path], directory, tmp_path / "out", chat_template=str(tmp_path / "none"))
    pq.write_table(pa.table({"messages": ["hello"]}), tmp_path / "b.parquet")
    with pytest.raises(CorpusError, match="expected lists of messages"):
        run([tmp_path / "b.parquet"], directory, tmp_path / "out")
    (tmp_path / "c.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"c\.txt"):
        run([tmp_path / "c.txt"], directory, tmp_path / "out")
