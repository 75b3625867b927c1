#!/bin/bash
# Localizes the cache on every node, then trains: submit it with
#   distcache submit blend.yaml -o /shared/caches --name pretrain \
#       --scheduler flux -- flux-train.sh train.py
#flux: --job-name=train
#flux: --nodes=2
#flux: --exclusive
#flux: --time-limit=12h
set -euo pipefail
export DISTCACHE_LOCAL_DIR=${DISTCACHE_LOCAL_DIR:-/local/distcache-$UID}
nodes=$(flux resource list -n -o "{nnodes}" -s all | head -n 1)
first=$(flux getattr hostlist | flux hostlist --nth=0)
one="--nodes=$nodes --tasks-per-node=1 --exclusive"

flux run $one distcache localize "$DISTCACHE_CACHE"
flux run $one torchrun --nnodes="$nodes" --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-id="$FLUX_ENCLOSING_ID" \
    --rdzv-endpoint="$first:29500" "$@"
