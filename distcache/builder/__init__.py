"""Building a cache with all ranks of an MPI job, or with a single process."""
