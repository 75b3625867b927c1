"""Jobs under Slurm: one that builds, one that trains after it; the only importer of submitit."""
