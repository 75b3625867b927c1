"""Build Megatron-style index caches with all MPI ranks, before training starts."""

__all__ = ["__version__"]

__version__ = "0.1.0"
