"""Process groups, communication, and agreement on errors."""
