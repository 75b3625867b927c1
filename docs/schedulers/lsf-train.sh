#!/bin/bash
# Localizes the cache on every node, then trains: submit it with
#   distcache submit blend.yaml -o /shared/caches --name pretrain \
#       --scheduler lsf -- lsf-train.sh train.py
#BSUB -J train
#BSUB -n 2
#BSUB -R "span[ptile=1]"
#BSUB -gpu "num=4"
#BSUB -W 720
#BSUB -o train.%J.log
set -euo pipefail
export DISTCACHE_LOCAL_DIR=${DISTCACHE_LOCAL_DIR:-/local/distcache-$UID}
nodes=$(sort -u "$LSB_DJOB_HOSTFILE" | wc -l)

mpiexec -n "$nodes" distcache localize "$DISTCACHE_CACHE"
mpiexec -n "$nodes" torchrun --nnodes="$nodes" --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-id="$LSB_JOBID" \
    --rdzv-endpoint="$(head -n 1 "$LSB_DJOB_HOSTFILE"):29500" "$@"
