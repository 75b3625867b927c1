# Run here: on the test cluster, tests/cluster/test_story.py.
#!/bin/bash
#SBATCH --job-name=distcache
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=90
#SBATCH --signal=USR1@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/caches/c.jobs/%j.log
#SBATCH --mem=12G
#SBATCH --partition=debug
#SBATCH --account=lab

# written by distcache submit
# These signals are for the ranks; this script acts on their exit code. SIGTERM ends it.
trap signalled=1 USR1 USR2
echo "==== started on $HOSTNAME" >&2
srun --mpi=pmi2 --cpus-per-task=2 --kill-on-bad-exit=1 /opt/env/bin/python -P -m distcache build '/shared/my blend.yaml' -o /shared/caches --name c
code=$?
# A launcher may have killed a rank that was interrupted, too, and say that instead.
[ "$code" -gt 8 ] && [ -n "${signalled-}" ] && code=8
if [ "$code" -eq 0 ] && [ ! -e /shared/caches/c.h5 ]; then
    echo 'distcache: /shared/caches/c.h5: is not there, though all ranks have succeeded' >&2
    code=5
fi
if [ "$code" -eq 8 ] && echo again >>/shared/caches/c.jobs/c-restarts-"$SLURM_JOB_ID" && [ $(wc -l </shared/caches/c.jobs/c-restarts-"$SLURM_JOB_ID") -le 3 ]; then
    echo "distcache was interrupted; the job starts again, and resumes" >&2
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
rm -f /shared/caches/c.jobs/c-restarts-"$SLURM_JOB_ID"
exit "$code"
