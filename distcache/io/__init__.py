"""Atomic writes and reading of files, unfinished files of many ranks, threads, the watchdog."""
