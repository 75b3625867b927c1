# Not run here: Flux is in no package; scripts of this form were run with Flux 0.88.
#!/bin/bash
#flux: --job-name=distcache
#flux: --nodes=2
#flux: --nslots=8
#flux: --cores-per-slot=2
#flux: --time-limit=90m
#flux: --output=/shared/caches/c.jobs/{{id}}.log
#flux: --queue=debug
#flux: --bank=lab

# written by distcache submit
# These signals are for the ranks; this script acts on their exit code. SIGTERM ends it.
trap signalled=1 USR1 USR2
echo "==== started on $HOSTNAME" >&2
flux run --signal=SIGUSR1@90s --nodes=2 --ntasks=8 --cores-per-task=2 /opt/env/bin/python -P -m distcache build '/shared/my blend.yaml' -o /shared/caches --name c
code=$?
# A launcher may have killed a rank that was interrupted, too, and say that instead.
[ "$code" -gt 8 ] && [ -n "${signalled-}" ] && code=8
if [ "$code" -eq 0 ] && [ ! -e /shared/caches/c.h5 ]; then
    echo 'distcache: /shared/caches/c.h5: is not there, though all ranks have succeeded' >&2
    code=5
fi
[ "$code" -eq 8 ] && echo "distcache was interrupted; submit again to resume" >&2
exit "$code"
