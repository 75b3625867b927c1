"""From texts and token shards to corpora: read, tokenize and write, with all ranks."""
