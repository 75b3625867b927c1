#!/bin/sh
# Slurm's Prolog: every user who runs a job has a directory of their own on the node's local disk,
# in which `distcache localize` keeps its copies. Runs as root, without PATH, before each job.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
disk=/local

[ -d "$disk" ] && [ -n "${SLURM_JOB_UID:-}" ] || exit 0
store="$disk/distcache-$SLURM_JOB_UID"
mkdir -m 0700 "$store" 2>/dev/null
# Only root makes directories that are root's: a link, or what a user has put there, is left alone.
if [ -d "$store" ] && [ ! -L "$store" ] && [ "$(stat -c %u "$store" 2>/dev/null)" = 0 ]; then
    chown -h "$SLURM_JOB_UID:$(id -g "$SLURM_JOB_UID")" "$store"
fi
exit 0  # anything else would drain the node
