"""The engine of a tokenizer of Hugging Face: gigatoken where it is equal, or the library."""

from __future__ import annotations

from distcache.errors import ConfigError
from distcache.extras import how_to_install
from distcache.ingest.tokenizers.huggingface import HuggingFace
from distcache.ingest.tokenizers.tokenizer import Tokenizer, TokenizerOptions, TokenizerSource
from distcache.storage.interruption import require_uninterrupted


def load(source: TokenizerSource, options: TokenizerOptions) -> Tokenizer:
    """Make a tokenizer of Hugging Face, with the engine that is asked for."""
    library = HuggingFace(source.name, source.content, options, source.end)
    if options.engine == "tokenizers":
        return library
    try:
        from distcache.ingest.tokenizers.gigatoken.engine import Gigatoken  # noqa: PLC0415

        return Gigatoken(library, source.content)
    except ImportError as error:  # missing, or built for another system
        reason = f"gigatoken cannot be imported ({error}): {how_to_install('fast')}"
    except ValueError as error:  # it needs what gigatoken does not have
        reason = str(error)
    require_uninterrupted()
    if options.engine == "gigatoken":
        raise ConfigError(f"--engine gigatoken: {options.name}: {reason}")
    library.note = reason
    return library
