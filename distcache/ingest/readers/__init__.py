"""Readers: a file for each format of inputs."""
