"""Corpora from corpora and shards: merge, select, index, unpack, mix; and what audits them."""
