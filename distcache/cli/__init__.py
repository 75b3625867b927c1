"""The command line: a thin file per group of commands."""
