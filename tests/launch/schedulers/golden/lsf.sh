# Not run here: LSF cannot be had; by its command reference.
#!/bin/bash
#BSUB -J distcache
#BSUB -n 8
#BSUB -R "span[ptile=4] rusage[mem=12G] affinity[core(2)]"
#BSUB -W 90
#BSUB -wt 2
#BSUB -wa USR1
#BSUB -Q "99"
#BSUB -o /shared/caches/c.jobs/%J.log
#BSUB -q debug
#BSUB -P lab

# written by distcache submit
# These signals are for the ranks; this script acts on their exit code. SIGTERM ends it.
trap signalled=1 USR1 USR2
echo "==== started on $HOSTNAME" >&2
/opt/env/bin/mpiexec -n 8 /opt/env/bin/python -P -m distcache build '/shared/my blend.yaml' -o /shared/caches --name c
code=$?
# A launcher may have killed a rank that was interrupted, too, and say that instead.
[ "$code" -gt 8 ] && [ -n "${signalled-}" ] && code=8
if [ "$code" -eq 0 ] && [ ! -e /shared/caches/c.h5 ]; then
    echo 'distcache: /shared/caches/c.h5: is not there, though all ranks have succeeded' >&2
    code=5
fi
if [ "$code" -eq 8 ] && echo again >>/shared/caches/c.jobs/c-restarts-"$LSB_JOBID" && [ $(wc -l </shared/caches/c.jobs/c-restarts-"$LSB_JOBID") -le 3 ]; then
    echo "distcache was interrupted; the job starts again, and resumes" >&2
    exit 99
fi
rm -f /shared/caches/c.jobs/c-restarts-"$LSB_JOBID"
exit "$code"
