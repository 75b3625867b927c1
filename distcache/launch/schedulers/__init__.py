"""What differs between schedulers: a file for each, and a table.

Slurm's jobs are submitted by submitit; the others' as batch scripts, of which these files have the
words. Nothing here runs a command.
"""
