"""The cache file: its format, reading, verifying, publishing and exporting."""

from distcache.cache.reader import ArrayView, Cache, open_cache

__all__ = ["ArrayView", "Cache", "open_cache"]
