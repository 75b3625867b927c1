"""The frameworks that read Megatron's order: under which names, and by which settings.

Each has a file, and an entry in `distcache.megatron.frameworks.known_frameworks`.
"""
