"""Ranks that agree, and what they do when they cannot."""
