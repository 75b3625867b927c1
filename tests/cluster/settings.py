"""Every path, address and configuration file of the test cluster; pure text."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

LOCAL = Path("/local")  # the private disk of every node; an empty directory elsewhere
HOSTS_FILE = Path("/etc/hosts")
SCRIPTS = Path(__file__).parent.parent.parent / "slurm"


@dataclass(frozen=True)
class Settings:
    """A cluster of small nodes on one machine.

    Attributes
    ----------
    base : Path
        A directory of its own for all that the cluster writes.
    nodes : int
        Compute nodes, named node1 and so on.
    cpus : int
        What each node claims to have, which may be more than there are.
    memory, disk, shared_memory : int
        MiB of each node: claimed, on its private disk, and in ``/dev/shm`` (MPICH wants 64).
    network, storage : str
        First three numbers of all addresses; the head is .1, the nodes are .11 and so on. The
        filesystem has a network of its own, so that its bytes can be counted.
    port : int
        Of slurmctld; the next three are slurmd's, slurmdbd's and MariaDB's.
    bound : bool
        Whether tasks run on the cores only that their step has asked for.
    """

    base: Path
    nodes: int = 3
    cpus: int = 4
    memory: int = 6000
    disk: int = 1024
    shared_memory: int = 2048
    network: str = "10.77.0"
    storage: str = "10.78.0"
    port: int = 16817
    bound: bool = False

    @property
    def head(self) -> str:
        """The name of this machine."""
        return socket.gethostname().partition(".")[0]

    @property
    def head_address(self) -> str:
        """Its address on the cluster's network."""
        return f"{self.network}.1"

    @property
    def names(self) -> list[str]:
        """Of the nodes."""
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def server(self) -> str:
        """The address from which the filesystem is served."""
        return f"{self.storage}.1"

    def address(self, node: str) -> str:
        """Of a node."""
        return f"{self.network}.{self.number(node)}"

    def number(self, node: str) -> int:
        """The last number of a node's addresses."""
        return 11 + self.names.index(node)

    @property
    def slurm_conf(self) -> Path:
        """What ``SLURM_CONF`` is set to."""
        return self.base / "etc" / "slurm.conf"

    @property
    def plugins(self) -> Path:
        """What Slurm reads to know its SPANK plugins."""
        return self.base / "etc" / "plugstack.conf"

    @property
    def munge_socket(self) -> Path:
        """Where munged answers."""
        return self.base / "munge" / "munge.socket"

    @property
    def shared(self) -> Path:
        """Where the network filesystem is mounted, on the head and on all nodes."""
        return self.base / "shared"

    def pid_file(self, name: str) -> Path:
        """Where a daemon's number is."""
        return self.base / "run" / f"{name}.pid"

    def log(self, name: str) -> Path:
        """Where a daemon writes what it does."""
        return self.base / "log" / f"{name}.log"


def slurm_conf(settings: Settings) -> str:
    """Return slurm.conf.

    Set for a machine with few cores: nodes may claim more than there is, batch jobs are started
    at once, credentials expire early, so that a requeued job starts after seconds, and a node
    counts as down 30 seconds after it has gone.
    """
    base, port = settings.base, settings.port
    binding = "TaskPlugin=task/none"
    if settings.bound:
        binding = "TaskPlugin=task/affinity\nTaskPluginParam=Cores"
    return f"""\
ClusterName=lab
SlurmctldHost={settings.head}({settings.head_address})
SlurmctldPort={port}
SlurmdPort={port + 1}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={settings.munge_socket},cred_expire=10
CredType=cred/munge
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={settings.pid_file("slurmctld")}
SlurmdPidFile={base}/run/slurmd.%n.pid
SlurmctldLogFile={settings.log("slurmctld")}
SlurmdLogFile={base}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
{binding}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=5
MinJobAge=300
MailProg=/bin/true
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port + 2}
AccountingStoragePass={settings.munge_socket}
JobCompType=jobcomp/none
NodeName=node[1-{settings.nodes}] NodeAddr={settings.network}.[11-{10 + settings.nodes}] \
CPUs={settings.cpus} RealMemory={settings.memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=cpu Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO
Prolog={SCRIPTS}/prolog.sh
Epilog={SCRIPTS}/epilog.sh
PrologFlags=Alloc
"""


def slurmdbd_conf(settings: Settings) -> str:
    """Return slurmdbd.conf."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={settings.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={settings.port + 2}
SlurmUser=root
PidFile={settings.pid_file("slurmdbd")}
LogFile={settings.log("slurmdbd")}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={settings.port + 3}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CommitDelay=1
"""


def hosts(settings: Settings) -> str:
    """Return the nodes' ``/etc/hosts``."""
    lines = ["127.0.0.1 localhost", f"{settings.head_address} {settings.head}"]
    lines += [f"{settings.address(node)} {node}" for node in settings.names]
    return "\n".join(lines) + "\n"
