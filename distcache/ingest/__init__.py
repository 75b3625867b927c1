"""From text and token shards to corpora: read, tokenise, and put together with all ranks."""

from distcache.ingest.options import TextOptions, TokenOptions
from distcache.ingest.run import Outcome, ingest
from distcache.ingest.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Outcome", "TextOptions", "TokenOptions", "Tokenizer", "ingest", "load_tokenizer"]
