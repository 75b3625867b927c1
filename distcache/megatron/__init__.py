"""Everything of Megatron-Core: options, names, descriptions, exported files."""
