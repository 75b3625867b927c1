"""The fast engine, and what proves that its tokens equal those of the tokenizers library."""
