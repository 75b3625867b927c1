"""From text, token shards and corpora to corpora: read, tokenize, merge, with all ranks."""
