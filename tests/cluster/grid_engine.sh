#!/bin/bash
# The first process of a host with Grid Engine: BASE PACKAGES. All mounts and addresses are its own.
set -eu
base=$1 packages=$2
exec </dev/null >>"$base/log" 2>&1
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$packages/usr:/usr" /usr
hostname sgehost
ip link set lo up
ip addr add 10.79.0.1/24 dev lo
printf '127.0.0.1 localhost\n10.79.0.1 sgehost\n' >"$base/hosts"
mount --bind "$base/hosts" /etc/hosts
common=$SGE_ROOT/default/common
mkdir -p "$common" "$base"/spool/{execd,qmaster/job_scripts}
ln -s /usr/share/gridengine/util "$SGE_ROOT/util"
sed -e "s#/var/spool/gridengine#$base/spool#; s#^\(admin_user *\).*#\1none#" \
    -e "s#^\(spooling_method *\).*#\1classic#; s#^\(spooling_lib *\).*#\1libspoolc#" \
    -e "s#^\(spooling_params *\).*#\1$common;$base/spool/qmaster#" \
    /usr/share/gridengine/default-bootstrap >"$common/bootstrap"
echo sgehost >"$common/act_qmaster"
sed -e "s#/var/spool/gridengine#$base/spool#; s#^\(min_[ug]id *\).*#\10#" \
    -e "s#^\(shell_start_mode *\).*#\1unix_behavior#" \
    /usr/share/gridengine/default-configuration >"$base/configuration"
programs=/usr/lib/gridengine resources=/usr/share/gridengine/util/resources
export LD_LIBRARY_PATH=$programs
$programs/spoolinit classic libspoolc "$common;$base/spool/qmaster" init
$programs/spooldefaults configuration "$base/configuration"
$programs/spooldefaults complexes $resources/centry
$programs/spooldefaults usersets $resources/usersets
$programs/spooldefaults managers root
unset LD_LIBRARY_PATH
sge_qmaster
for _ in {1..100}; do qconf -sh && break || sleep 0.1; done
qconf -as sgehost
cat >"$base/pe" <<END
pe_name            mpi
slots              99
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    \$fill_up
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
END
qconf -Ap "$base/pe"
sed -e 's/^\(qname *\).*/\1all.q/; s/^\(hostlist *\).*/\1sgehost/; s/^\(slots *\).*/\18/' \
    -e 's/^\(pe_list *\).*/\1mpi/; s/^\(load_thresholds *\).*/\1NONE/; s/^\(rerun *\).*/\1TRUE/' \
    -e "s#^\(tmpdir *\).*#\1$base/tmp#; s#^\(shell  *\).*#\1/bin/bash#; s/^\(shell_start_mode *\).*/\1unix_behavior/" \
    <(qconf -sq) >"$base/queue"
qconf -Aq "$base/queue"
# The scheduler acts at once.
qconf -ssconf | sed -e 's/^\(schedule_interval *\).*/\10:0:1/; s/^\(flush_[a-z]*_sec *\).*/\11/' >"$base/scheduler"
qconf -Msconf "$base/scheduler"
sge_execd
touch "$base/up"
while :; do
    wait -n 2>/dev/null || sleep 0.5
done
