"""The cache file: its format, HDF5 layout, opening, verifying, inspecting and readiness."""

from distcache.cache.contents import ArrayView, Cache, open_cache

__all__ = ["ArrayView", "Cache", "open_cache"]
