"""Bytes, safely: atomic writes, locks, journals, limits; places that are files or objects."""
