"""The life cycle of unfinished files: claim, workspace, lock, owner, heartbeat, journal."""
