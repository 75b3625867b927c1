"""Atomic writes and reading of files, thread pools, and the watchdog."""
