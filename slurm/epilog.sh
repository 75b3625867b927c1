#!/bin/sh
# Slurm's Epilog: brings the user's copies on the node's local disk down to a budget, those that were
# used last staying. Runs as root, without PATH, after each job; touches the store as its user only.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
disk=/local
budget=200G
distcache=/opt/distcache/bin/distcache

[ -n "${SLURM_JOB_UID:-}" ] || exit 0
store="$disk/distcache-$SLURM_JOB_UID"
[ -e "$store/.distcache-store" ] && [ ! -L "$store" ] && [ -x "$distcache" ] || exit 0
group=$(id -g "$SLURM_JOB_UID") || exit 0
timeout -k 10 120 setpriv --reuid="$SLURM_JOB_UID" --regid="$group" --clear-groups \
    env -i PATH="$PATH" PYTHONNOUSERSITE=1 "$distcache" local gc --store "$store" --budget "$budget" >/dev/null 2>&1
exit 0  # anything else would drain the node
