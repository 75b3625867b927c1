#!/bin/bash
# The first process of a node. Its environment says which node; all mounts are the node's own.
set -eu
exec </dev/null >>"$LOG" 2>&1
hostname "$NODE"
mount --make-rprivate /
# The head's client would go around the node's network card.
umount -l "$SHARED"
mount -o loop "$DISK" "$LOCAL"
chmod 1777 "$LOCAL"
mount -t tmpfs -o "size=$SHARED_MEMORY,mode=1777" shm /dev/shm
# Where slurm/epilog.sh looks for distcache.
mount -t tmpfs opt /opt
mkdir -p /opt/distcache/bin
ln -s "$DISTCACHE" /opt/distcache/bin/distcache
mount --bind "$HOSTS" "$HOSTS_FILE"
slurmd -N "$NODE" -D &
# Reap what loses its parent, for as long as the node has power.
while :; do
    wait -n 2>/dev/null || sleep 0.5
done
