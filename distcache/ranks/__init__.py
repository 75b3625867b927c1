"""The processes of a job: who they are, what they say to one another, how they agree on errors."""
