"""Jobs: one that builds, and one that trains after it; the only importer of submitit."""
