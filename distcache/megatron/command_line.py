"""Read Megatron's training command: which words are options of data, and which are ignored."""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any, Final, NoReturn, get_args

import msgspec

from distcache.errors import ConfigError, NotReady
from distcache.megatron.tokenizers import MegatronTokenizer, Release, one_release
from distcache.megatron.training_options import Arithmetic, Training
from distcache.plan.config import BlendArithmetic
from distcache.storage.files import read_text

MAX_COMMAND_BYTES: Final = 1 << 22  # bytes of a file with a command
MAX_WORD: Final = 1 << 17  # characters of a word; Linux starts no program with a longer one
MAX_SAID: Final = 200  # characters of words that a message repeats
LISTS: Final[dict[str, dict[str, Any]]] = {
    "--rampup-batch-size": {"nargs": 3, "type": int},
    "--tokenizer-special-tokens": {"nargs": "+"},
}
# Options of data that has no index.
WITHOUT_INDEX: Final = ("mock_data", "sft")
# An option of Megatron that is no misspelt one of those that are read.
LOOKS_MISSPELT: Final = "--decoder-seq-length"
# Scripts that train from other datasets than GPTDataset, whose indices they would never look for.
OTHER_SCRIPTS: Final = re.compile(
    r"(?:pretrain|train|finetune)_(?:bert|t5|ict|biencoder|realm|retro|vision|vlm|llava|mimo)\w*\.py"
)
SHELLS: Final = ("sh", "bash", "zsh", "dash", "ksh")
COMMAND_END: Final = "\0"  # marks the end of a command
# A part of a shell's text: quoted, escaped, a comment, the end of a command, or any other.
WORD_PART: Final = re.compile(
    r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?P<comment>(?<![^\s;&|])#[^\n]*)"""
    r"""|(?P<end>&&|\|\||\|&?|;|(?<!>)&(?!>))|[^'"\\#;&|]+|.""",
    re.DOTALL,
)
WORD: Final = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+""", re.DOTALL)
# What sends the output of a command elsewhere.
REDIRECTION: Final = re.compile(r"(?:\d|&)?>>?(?:&\d|&-)?")
OPTION: Final = re.compile(r"-+[A-Za-z_]")  # negative numbers are values
VARIABLE: Final = re.compile(r"\$[\w{(]")
WHOLE_VARIABLE: Final = re.compile(r"(\$\w+|\$\{[^}]*\}|\$\(.*\))+")
SIMILARITY: Final = (
    0.9,
    0.95,
)  # similarity of misspelt names: of short ones, and from `LONG_OPTION` letters
LONG_OPTION: Final = 16


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"Megatron options: {message}")


def _data_parser() -> _Parser:
    """Return a parser of the options that are read, Megatron's and this project's."""
    parser = _own_parser()
    for name in ("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path"):
        parser.add_argument(name, nargs="*")
    for name in ("--data-args-path", "--per-split-data-args-path", "--split"):
        parser.add_argument(name)
    parser.add_argument("--encoder-seq-length", type=int)
    parser.add_argument("--dataloader-type")
    parser.add_argument("--no-data-sharding", dest="data_sharding", action="store_false")
    parser.add_argument("--iterations-to-skip", nargs="+", type=int)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--mid-level-dataset-surplus", type=float, default=0.005)
    parser.add_argument("--multiple-validation-sets", action="store_true")
    parser.add_argument("--fim-data", action="store_true")
    for name in WITHOUT_INDEX:
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
    parser.add_argument("--yaml-cfg")
    _add_fields(parser, Training)
    _add_fields(parser, MegatronTokenizer)
    parser.add_argument("--tiktoken-special-tokens", nargs="+", dest="tokenizer_special_tokens")
    return parser


def _own_parser() -> _Parser:
    """Return a parser of the options that Megatron does not have."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--megatron",
        type=_release,
        metavar="RELEASE",
        help="Release of Megatron whose arithmetic and file names count, such as 0.19.",
    )
    parser.add_argument(
        "--data-parallel-size",
        type=int,
        metavar="N",
        help="Ranks that share a global batch, if the command gives only --micro-batch-size.",
    )
    parser.add_argument(
        "--iteration",
        type=int,
        default=0,
        metavar="N",
        help="First iteration of a later phase of --phase-transition-iterations.",
    )
    parser.add_argument(
        "--arithmetic",
        choices=get_args(Arithmetic),
        default="megatron",
        help="Program that asks for samples: Megatron-LM, or Megatron-Bridge.",
    )
    parser.add_argument(
        "--eval-at-step-zero",
        action="store_true",
        help="Megatron-Bridge validates before the first step.",
    )
    parser.add_argument(
        "--blend-arithmetic",
        choices=get_args(BlendArithmetic),
        default="separate",
        help="Rounding of blends: fused if you train on AArch64.",
    )
    parser.add_argument(
        "--tokenizer-description",
        metavar="FILE",
        help="A description.txt that Megatron wrote, instead of options of the tokenizer.",
    )
    parser.add_argument(
        "--mixed-tokenizers",
        action="store_true",
        help="Allow corpora whose receipts name different tokenizers.",
    )
    return parser


def own_options() -> list[argparse.Action]:
    """Return the options of a training command that Megatron does not have."""
    return _own_parser()._actions


def _release(text: str) -> Release:
    try:
        return one_release(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_fields(parser: argparse.ArgumentParser, kind: type[msgspec.Struct]) -> None:
    """Add an option for each field that the parser does not have yet."""
    for field in msgspec.structs.fields(kind):
        name = field.name.replace("_", "-")
        if f"--{name}" in parser._option_string_actions or field.name == "model_type":
            continue
        if field.type is bool:
            negated = [f"--no-{name}", f"--disable-{name}"]
            action = "store_false" if field.default else "store_true"
            names = negated if field.default else [f"--{name}"]
            parser.add_argument(*names, dest=field.name, action=action)
            continue
        default = None if field.default is msgspec.NODEFAULT else field.default
        number = field.type is int or int in get_args(field.type)
        how = LISTS.get(f"--{name}", {"type": int if number else str})
        parser.add_argument(f"--{name}", default=default, **how)


# Options that say which data is used, and flags among them that are on by default.
_DATA_ACTIONS: Final = tuple(_data_parser()._actions)
DATA_KEYS: Final = {action.dest for action in _DATA_ACTIONS}
DATA_OPTIONS: Final = frozenset(name for action in _DATA_ACTIONS for name in action.option_strings)
ON_BY_DEFAULT: Final = {action.dest for action in _DATA_ACTIONS if action.const is False}


def is_command(words: Sequence[str]) -> bool:
    """Return whether these are options or a whole command, and no configuration's file."""
    return words[0].startswith(("-", "@")) or any(word.endswith(".py") for word in words)


def require_command(words: Sequence[str]) -> None:
    """Refuse words that are no command: a command of this project does not know them.

    Raises
    ------
    ConfigError
        Naming them.
    """
    if words[0].startswith("-") or not is_command(words):
        raise ConfigError(
            f"unknown option or word: {' '.join(words)}; a training command comes after --, and "
            "has a script that ends in .py, or is @FILE"
        )


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a training command.

    Parameters
    ----------
    words : sequence of str
        Options; or a whole command, of which all before the script is dropped, but for options
        that Megatron does not have; or ``@FILE`` with such a command.

    Returns
    -------
    argparse.Namespace
        Every option that is read, by Megatron's names; all others are ignored, with the words
        after them.

    Raises
    ------
    ConfigError
        If a word belongs to no option, or an unknown option is like one that is read; if an option
        asks for data without an index, or the script trains from other datasets.
    NotReady
        If there is no such file.
    """
    before, after = _around_script(words)
    parser = _data_parser()
    own = _own_parser().parse_known_args(before)[0]
    read = _without_others(after, parser)
    if variables := [word for word in read if VARIABLE.search(word)]:
        raise ConfigError(_not_expanded(variables))
    options, unknown = parser.parse_known_args(read)
    if unknown:
        raise ConfigError(f"unknown option or word: {' '.join(unknown)}")
    options.seq_length = options.seq_length or options.encoder_seq_length
    if options.seq_length is None:
        raise ConfigError("Megatron options: --seq-length: missing")
    if own.megatron and options.megatron and own.megatron != options.megatron:
        raise ConfigError(f"--megatron: both {own.megatron} and {options.megatron} are given")
    _own_parser().parse_known_args(before, options)
    _require_gpt_data(options)
    return options


def named_options(words: Sequence[str]) -> set[str]:
    """Return the names of the options that a command's words name, as `parse` gives them."""
    before, after = _around_script(words)
    known = {**_own_parser()._option_string_actions, **_data_parser()._option_string_actions}
    named = (known.get(word.partition("=")[0]) for word in (*before, *after))
    return {action.dest for action in named if action is not None}


def _require_gpt_data(options: argparse.Namespace) -> None:
    """Refuse options with which Megatron trains from no GPTDataset.

    Raises
    ------
    ConfigError
        Naming the option.
    """
    if options.yaml_cfg is not None:
        raise ConfigError("--yaml-cfg: is not read; give its options of data on the command line")
    for name in WITHOUT_INDEX:
        if getattr(options, name):
            raise ConfigError(f"--{name.replace('_', '-')}: such data has no index to build")
    if options.dataloader_type == "external":
        raise ConfigError("--dataloader-type external: the script brings its own data: no index")


def _without_others(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the words without options that are not read, and the words after them."""
    left: list[str] = []
    dropping = False
    read = tuple(name for name in parser._option_string_actions if name.startswith("--"))
    misspelt = functools.cache(meant_option)
    for word in words:
        name = word.partition("=")[0]
        if OPTION.match(word) is not None:
            dropping = name not in parser._option_string_actions
            meant = misspelt(name, read) if dropping else None
            if meant is not None and name != LOOKS_MISSPELT:
                raise ConfigError(f"unknown option or word: {word}; did you mean {meant}?")
        if not dropping:
            left.append(word)
    return left


def meant_option(name: str, known: tuple[str, ...]) -> str | None:
    """Return the option that an unknown one is like: a letter or two aside, or with underscores."""
    dashed = name.replace("_", "-")
    least = SIMILARITY[len(dashed) >= LONG_OPTION]
    for other in known:
        same_length = len(dashed) == len(other)
        differing = sum(a != b for a, b in zip(dashed, other, strict=False))
        matcher = difflib.SequenceMatcher(None, dashed, other)
        if (
            dashed == other
            or (same_length and (differing == 1 or sorted(dashed) == sorted(other)))
            or (matcher.real_quick_ratio() >= least and matcher.ratio() >= least)
        ):
            return other
    return None


def megatron_words(words: Sequence[str]) -> list[str]:
    """Return the words of a training command that Megatron's own parser gets."""
    _, after = _around_script(words)
    return _own_parser().parse_known_args(after)[1]


def _around_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before a script and those after it; all are after it if there is none."""
    words = list(words)
    theirs = _own_parser().parse_known_args(words)[1]
    if theirs and theirs[0][:1] == "@":  # elsewhere it is a value
        place = words.index(theirs[0])
        words = [*words[:place], *_words_of(words[place]), *words[place + 1 :]]
        theirs = _own_parser().parse_known_args(words)[1]
    if not theirs or theirs[0].startswith("-"):  # options alone
        return [], words
    script = _script_of(words)
    return words[:script], words[script + 1 :]


def _script_of(words: Sequence[str]) -> int:
    """Return which word of a command is the script that trains.

    It is the last that ends like one before the first option that is read: launchers may be such
    scripts.

    Raises
    ------
    ConfigError
        If there is none, or it does not train GPT.
    """
    known = _data_parser()._option_string_actions.keys() - _own_parser()._option_string_actions
    first = next(
        (place for place, word in enumerate(words) if word.partition("=")[0] in known), len(words)
    )
    scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
    if not scripts:
        raise ConfigError(_no_script(words))
    found = max((place for place in scripts if place < first), default=scripts[0])
    names = (words[place] for place in scripts if place <= found)
    other = next((n for n in names if OTHER_SCRIPTS.fullmatch(os.path.basename(n))), None)
    if other is not None:
        raise ConfigError(
            f"{other}: trains from other datasets than GPTDataset, whose indices these are; "
            "a cache would never be read"
        )
    return found


def _no_script(words: Sequence[str]) -> str:
    """Return why a command without a script cannot be read."""
    names = [os.path.basename(word) for word in words]
    for place, name in enumerate(names[:-1]):
        if name in SHELLS and re.fullmatch("-[a-z]*c", names[place + 1]):
            return f"{name} {names[place + 1]}: unpack the quoted command: write its words after --"
    if "-m" in words:
        return "-m: names a module; give the path of its script, such as pretrain_gpt.py"
    said = " ".join(words)
    said = said if len(said) <= MAX_SAID else f"{said[:MAX_SAID]}..."
    return f"unknown option or word: {said}; a training command has a script, as x.py"


def _words_of(word: str) -> list[str]:
    """Return the words of a file, as a shell separates them; it expands nothing."""
    path = word[1:]
    try:
        text = _without_comments(read_text(path, MAX_COMMAND_BYTES).replace("\r\n", "\n"))
        # shlex takes time by the square of a word's length.
        if any(len(word[0]) > MAX_WORD for word in WORD.finditer(text)):
            raise ValueError(f"has a word of more than {MAX_WORD:,} characters")
        words = shlex.split(text)
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such file of a training command") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    # Each may stand for options that are read; within other text it is the value of one option.
    if whole := [found for found in words if WHOLE_VARIABLE.fullmatch(found)]:
        raise ConfigError(f"{path}: {_not_expanded(whole)}")
    return _command_of(words)


def _not_expanded(words: Sequence[str]) -> str:
    """Return what is said of variables, which only a shell expands."""
    return (
        f"write the value of {', '.join(words)}: no shell expands it; or put `echo` before the "
        "launcher of the script, run it, and give what it prints"
    )


def _without_comments(text: str) -> str:
    """Return what a shell reads: without comments, with continued lines joined.

    A comment begins a word, and its line is not continued. The end of a command becomes the word
    `COMMAND_END`.
    """

    def plain(match: re.Match[str]) -> str:
        if match["comment"]:
            return ""
        if match["end"]:
            return f" {COMMAND_END} "
        return match[0] if match[0][0] == "'" else match[0].replace("\\\n", "")

    return WORD_PART.sub(plain, text)


def _command_of(words: Sequence[str]) -> list[str]:
    """Return the words of the command that trains, without what a shell does with its output."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == COMMAND_END:
            commands.append([])
        else:
            commands[-1].append(word)

    def likeness(command: list[str]) -> tuple[bool, bool, int]:
        names = {word.partition("=")[0] for word in command}
        trains = not names.isdisjoint(("--seq-length", "--encoder-seq-length"))
        return trains, any(word.endswith(".py") for word in command), len(command)

    found: list[str] = []
    chosen: list[str] = max(commands, key=likeness)
    following = iter(chosen)
    for word in following:
        if REDIRECTION.match(word) is None:
            found.append(word)
        elif REDIRECTION.fullmatch(word) is not None and "&" not in word[1:]:
            next(following, None)
    return found
