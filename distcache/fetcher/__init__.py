"""The fetcher: one process per node that reads tokens from buckets for all training processes."""
