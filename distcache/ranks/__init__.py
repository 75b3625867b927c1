"""What commands of several ranks are made of: communication, agreement, progress, workspaces."""
