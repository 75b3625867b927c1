# Run here: by Grid Engine 8.1.9 of Debian, tests/cluster/test_other_schedulers.py.
#!/bin/bash
#$ -N distcache
#$ -pe mpi 16
#$ -l h_rt=5400,s_rt=5310
#$ -cwd
#$ -v LD_LIBRARY_PATH,PATH
#$ -r y
#$ -j y
#$ -o /shared/caches/c.jobs/$JOB_ID.log
#$ -S /bin/bash
#$ -q debug
#$ -P lab

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
if [ "$code" -eq 8 ] && echo again >>/shared/caches/c.jobs/c-restarts-"$JOB_ID" && [ $(wc -l </shared/caches/c.jobs/c-restarts-"$JOB_ID") -le 3 ]; then
    echo "distcache was interrupted; the job starts again, and resumes" >&2
    exit 99
fi
rm -f /shared/caches/c.jobs/c-restarts-"$JOB_ID"
exit "$code"
