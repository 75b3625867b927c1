#!/bin/bash
# Localizes the cache on every node, then trains: submit it with
#   distcache submit blend.yaml -o /shared/caches --name pretrain \
#       --scheduler sge -- grid-engine-train.sh train.py
#$ -N train
#$ -pe mpi 2
#$ -l h_rt=43200
#$ -cwd
#$ -j y
#$ -S /bin/bash
set -euo pipefail
export DISTCACHE_LOCAL_DIR=${DISTCACHE_LOCAL_DIR:-${TMPDIR:-/tmp}/distcache}
nodes=$(wc -l <"$PE_HOSTFILE")

mpiexec -n "$nodes" -ppn 1 distcache localize "$DISTCACHE_CACHE"
mpiexec -n "$nodes" -ppn 1 torchrun --nnodes="$nodes" --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-id="$JOB_ID" \
    --rdzv-endpoint="$(awk 'NR == 1 {print $1}' "$PE_HOSTFILE"):29500" "$@"
