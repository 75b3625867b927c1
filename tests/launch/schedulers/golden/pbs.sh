# Run here: by Slurm's emulation of PBS, tests/cluster/test_other_schedulers.py.
#!/bin/bash
#PBS -N distcache
#PBS -l select=2:ncpus=8:mpiprocs=4:mem=12gb
#PBS -l place=scatter
#PBS -l walltime=1:30:00
#PBS -r y
#PBS -j oe
#PBS -o /shared/caches/c.jobs/
#PBS -q debug
#PBS -A lab

# written by distcache submit
# These signals are for the ranks; this script acts on their exit code. SIGTERM ends it.
trap signalled=1 USR1 USR2
echo "==== started on $HOSTNAME" >&2
cd "${PBS_O_WORKDIR:-.}"
timeout --preserve-status --signal=USR1 5310 /opt/env/bin/mpiexec -n 8 /opt/env/bin/python -P -m distcache build '/shared/my blend.yaml' -o /shared/caches --name c
code=$?
# A launcher may have killed a rank that was interrupted, too, and say that instead.
[ "$code" -gt 8 ] && [ -n "${signalled-}" ] && code=8
if [ "$code" -eq 0 ] && [ ! -e /shared/caches/c.h5 ]; then
    echo 'distcache: /shared/caches/c.h5: is not there, though all ranks have succeeded' >&2
    code=5
fi
if [ "$code" -eq 8 ] && echo again >>/shared/caches/c.jobs/c-restarts-"$PBS_JOBID" && [ $(wc -l </shared/caches/c.jobs/c-restarts-"$PBS_JOBID") -le 3 ]; then
    echo "distcache was interrupted; the job starts again, and resumes" >&2
    qrerun "$PBS_JOBID" && sleep 60
fi
rm -f /shared/caches/c.jobs/c-restarts-"$PBS_JOBID"
exit "$code"
