"""The life cycle of unfinished files: hidden directory, lock, heartbeat, journal, publication."""
