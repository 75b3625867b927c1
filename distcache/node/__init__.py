"""The agent of a node: it puts caches and `.idx` files on local storage, and keeps them sound."""
