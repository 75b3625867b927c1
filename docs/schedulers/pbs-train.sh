#!/bin/bash
# Localizes the cache on every node, then trains: submit it with
#   distcache submit blend.yaml -o /shared/caches --name pretrain \
#       --scheduler pbs -- pbs-train.sh train.py
#PBS -N train
#PBS -l select=2:ncpus=8:mpiprocs=1:ngpus=4
#PBS -l place=scatter
#PBS -l walltime=12:00:00
#PBS -j oe
set -euo pipefail
export DISTCACHE_LOCAL_DIR=${DISTCACHE_LOCAL_DIR:-/local/distcache-$UID}
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)

mpiexec -n "$nodes" distcache localize "$DISTCACHE_CACHE"
mpiexec -n "$nodes" torchrun --nnodes="$nodes" --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-id="${PBS_JOBID%%.*}" \
    --rdzv-endpoint="$(head -n 1 "$PBS_NODEFILE"):29500" "$@"
