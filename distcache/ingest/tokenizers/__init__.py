"""Tokenizers: a file for each kind, behind one protocol."""
