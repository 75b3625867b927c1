"""Which tokenizer corpora came from, as their receipts say it."""

from __future__ import annotations

from collections.abc import Mapping

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.receipt import TokenizerFacts, find_receipt, receipt_path
from distcache.errors import ConfigError, CorpusError

__all__ = ["require_one_tokenizer", "tokenizers_of"]


def tokenizers_of(corpora: Mapping[str, CorpusFacts]) -> dict[str, TokenizerFacts | None]:
    """Read the receipts that lie beside corpora.

    Parameters
    ----------
    corpora : mapping of str to CorpusFacts
        By prefix.

    Returns
    -------
    dict of str to TokenizerFacts or None
        By prefix; None where there is no receipt, or it names none.

    Raises
    ------
    CorpusError
        Naming every receipt that cannot be read, or is that of another corpus.
    """
    found: dict[str, TokenizerFacts | None] = {}
    problems: list[str] = []
    for prefix, facts in corpora.items():
        try:
            receipt = find_receipt(prefix)
        except CorpusError as error:
            problems += error.problems
            continue
        differences = receipt.differences(facts) if receipt else []
        if differences:
            problems.append(
                f"{receipt_path(prefix)}: is not the receipt of the corpus beside it "
                f"({'; '.join(differences)}); remove it if the corpus was made anew"
            )
        found[prefix] = receipt.tokenizer if receipt else None
    if problems:
        raise CorpusError(*problems)
    return found


def require_one_tokenizer(tokenizers: Mapping[str, TokenizerFacts | None], remedy: str) -> None:
    """Refuse corpora of different tokenizers; those without a receipt may be of any.

    Parameters
    ----------
    tokenizers : mapping of str to TokenizerFacts or None
        By prefix.
    remedy : str
        How to put them together all the same.

    Raises
    ------
    ConfigError
        Naming a corpus of each tokenizer.
    """
    first: dict[str, str] = {}
    for prefix, facts in tokenizers.items():
        if facts is not None:
            first.setdefault(facts.digest, f"{prefix}: {facts.name}, digest {facts.digest}")
    if len(first) > 1:
        raise ConfigError(
            "corpora of different tokenizers are put together, whose tokens mean different things "
            f"({'; '.join(first.values())}); {remedy}"
        )
