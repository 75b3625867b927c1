"""Mosaic MDS shards as they are: their index, their bytes, and the columns of their records.

The format is that of mosaicml-streaming 0.13 (``streaming/base/format/mds``); docs/mds.md has it.
"""
