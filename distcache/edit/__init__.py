"""Corpora from corpora and shards: copy, select, index, mix; and what audits them."""
