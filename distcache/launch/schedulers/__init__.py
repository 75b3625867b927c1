"""What differs between schedulers: a file for each, and a table.

These files have the words of batch scripts and of the commands that submit them. Nothing here runs
a command.
"""
