"""Conversations to texts by a chat template, and to tokens of which some have a loss.

A template of transformers encloses what a model writes in ``{% generation %}``. Here each of these
tags becomes the call of a macro that puts characters around its text, so that the text is rendered
whole and the characters say where a loss begins and ends. transformers itself counts characters
while it renders, which goes wrong in macros and, in some releases, at the first character.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from transformers.utils.chat_template_utils import render_jinja_template

from distcache.errors import ConfigError
from distcache.ingest.tokenizers.huggingface import HuggingFace
from distcache.ingest.tokenizers.tokenizer import (
    Conversation,
    Encoded,
    TokenizerOptions,
    TokenizerSource,
    encoded_lists,
    refusing,
)

# Characters that Unicode reserves for uses within a program (Unicode 17, section 23.7).
BEGIN: Final = "\ufdd0"
END: Final = "\ufdd1"
MARKS: Final = re.compile(f"[{BEGIN}{END}]")
TAG: Final = re.compile(r"\{%([-+]?)\s*(end)?generation\s*:?\s*([-+]?)%\}")
# The newline belongs to the tag before it (trim_blocks), so that a template begins as before.
MACRO: Final = (
    f"{{% macro distcache_generation() -%}}{BEGIN}{{{{ caller() }}}}{END}{{%- endmacro %}}\n"
)
TODAY: Final = "strftime_now"
GIVE: Final = "give one with --chat-template FILE"


class TextWithSpans(NamedTuple):
    """A text, and the ranges of its characters that have a loss."""

    text: str
    spans: list[tuple[int, int]]


class ChatTokenizer:
    """Renders conversations, and encodes what it rendered; a `Tokenizer`.

    Parameters
    ----------
    source : TokenizerSource
        Files of a tokenizer of Hugging Face.
    tokenizer : TokenizerOptions
        Options of the tokenizer.
    marked : bool
        Whether only what the template marks has a loss.

    Raises
    ------
    ConfigError
        If there is no chat template, or one that does not say what has a loss, or one that
        depends on the day.
    """

    libraries: ClassVar[tuple[str, ...]] = (*HuggingFace.libraries, "transformers", "jinja2")
    note: str | None = None

    def __init__(self, source: TokenizerSource, options: TokenizerOptions, *, marked: bool) -> None:
        name = options.name
        if source.kind != "huggingface" or source.special_tokens is None:
            raise ConfigError(
                f"--messages: {name} is not a tokenizer's directory with tokenizer_config.json, "
                "whose special tokens a chat template needs"
            )
        if source.template is None:
            raise ConfigError(f"--messages: {name} has no chat template; {GIVE}")
        self._template = source.template
        self._tool_template = source.tool_template or source.template
        for template in (self._template, self._tool_template):
            _require_usable(template, marked=marked)
        library = HuggingFace(source.name, source.content, options, source.end)
        self.facts, self.engine, self.decode = library.facts, library.engine, library.decode
        self._marks = marked
        self._special_tokens = source.special_tokens
        self._encoder = _without_post_processor(source.content)

    def render(self, conversation: Conversation) -> str:
        """Return the text of a conversation, with marks around what has a loss.

        Raises
        ------
        ValueError
            If it is no conversation, or the template refuses it.
        """
        messages, tools = _messages_of(conversation), _tools_of(conversation)
        template = self._template if tools is None else self._tool_template
        text = self._render(template, messages, tools)
        if not self._marks:
            return text
        if MARKS.search(text):
            raise ValueError("has U+FDD0 or U+FDD1, which are no characters of a text")
        with_marks = self._render(MACRO + TAG.sub(_call, template), messages, tools)
        if MARKS.sub("", with_marks) != text:
            raise ValueError("the chat template changes what it encloses in {% generation %}")
        if MARKS.findall(with_marks) != [BEGIN, END] * with_marks.count(BEGIN):
            raise ValueError("the chat template has {% generation %} within another")
        return with_marks

    def _render(self, template: str, messages: list[dict[str, Any]], tools: Any) -> str:
        try:
            with refusing():
                rendered: Any = render_jinja_template(
                    conversations=[messages],
                    tools=tools,
                    chat_template=template,
                    **self._special_tokens,
                )
        except ValueError as error:
            raise ValueError(f"the chat template refuses it: {error}") from error
        return str(rendered[0][0])

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts that `render` made, and their losses."""
        split = _split_marks if self._marks else lambda text: TextWithSpans(text, [])
        parts = list(map(split, texts))
        with refusing():
            plain = [text for text, _ in parts]
            found = self._encoder.encode_batch(plain, add_special_tokens=False)
        encoded = encoded_lists([encoding.ids for encoding in found])
        if not self._marks:
            return encoded
        losses = [
            _losses_of(encoding.offsets, spans)
            for encoding, (_, spans) in zip(found, parts, strict=True)
        ]
        return encoded._replace(losses=np.concatenate([np.empty(0, np.uint8), *losses]))


def _require_usable(template: str, *, marked: bool) -> None:
    """Refuse a template that depends on the day, or that does not say what has a loss."""
    if TODAY in template:
        raise ConfigError(
            f"--messages: the chat template writes today's date ({TODAY}), so that tokens would "
            f"change from day to day; {GIVE} and a date of your choice"
        )
    if marked and TAG.search(template) is None:
        raise ConfigError(
            "--messages: the chat template does not enclose what the model writes in "
            f"{{% generation %}}, so that nothing says what has a loss; {GIVE}, for example one "
            "of TRL's training templates, or --loss all for a loss everywhere"
        )


def _call(tag: re.Match[str]) -> str:
    """Return the tag of a call instead of one of ``{% generation %}``."""
    begin, closes, end = tag.groups()
    return f"{{%{begin} {'endcall' if closes else 'call distcache_generation()'} {end}%}}"


def _without_post_processor(content: bytes) -> tokenizers.Tokenizer:
    """Return a tokenizer whose offsets are those of whole tokens, and that adds none.

    A post-processor of GPT-2's kind leaves white space out of offsets (``trim_offsets``).
    """
    description = json.loads(content)
    description |= {"post_processor": None, "truncation": None, "padding": None}
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def _split_marks(with_marks: str) -> TextWithSpans:
    """Return a text without its marks, and what they enclosed."""
    parts = MARKS.split(with_marks)
    ends = list(itertools.accumulate(map(len, parts)))
    return TextWithSpans("".join(parts), list(zip(ends[0::2], ends[1::2], strict=False)))


def _losses_of(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> NDArray[np.uint8]:
    """Return 1 for each token that has a character in a span, else 0.

    Both say the first character, and the one after the last; spans ascend, and are apart.
    """
    begins, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    filled = np.array([span for span in spans if span[0] < span[1]], np.int64).reshape(-1, 2)
    # A span has a character of a token if it begins before its end, and ends after its begin.
    begun = np.searchsorted(filled[:, 0], ends, "left")
    over = np.searchsorted(filled[:, 1], begins, "right")
    return (begun > over).astype(np.uint8)


def _messages_of(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the messages of a conversation; fields that are null are left out.

    transformers does so since 5.0: templates write "None" for them.
    """
    messages = conversation.messages
    if not isinstance(messages, list) or not messages:
        raise ValueError("expected a list of messages, each with a role and its content")
    found = []
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"message {place} is not an object with role and content")
        if not isinstance(message.get("role"), str):
            names = ", ".join(message) or "none"
            raise ValueError(f"message {place} has no role that is a text; its fields are {names}")
        if not isinstance(message.get("content"), str | None):
            raise ValueError(f"the content of message {place} is not a text")
        found.append({name: value for name, value in message.items() if value is not None})
    return found


def _tools_of(conversation: Conversation) -> list[dict[str, Any]] | None:
    """Return the tools of a conversation, which may be JSON in a text."""
    tools = conversation.tools
    if isinstance(tools, str):
        try:
            tools = json.loads(tools or "null")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"its tools are not JSON: {error}") from error
    if tools is None or (isinstance(tools, list) and all(isinstance(x, dict) for x in tools)):
        return tools
    raise ValueError("its tools are not a list of objects")
