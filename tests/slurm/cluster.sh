# A Slurm of one node in a temporary folder, for tests: source it, then cluster_up; cluster_down ends what it started. Needs root.
# It has its own munged, ports and state: a Slurm of the machine is neither used nor changed.

cluster_missing() {  # what is missing, in words
  local program
  for program in munged mungekey slurmctld slurmd srun sbatch scontrol squeue runuser; do
    command -v $program >/dev/null || { echo "$program is not installed (slurm-wlm, munge)"; return; }
  done
  [[ $(id -u) == 0 ]] || { echo "not root"; return; }
  id munge >/dev/null 2>&1 || echo "there is no user munge"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

cluster_up() {
  cluster=$(mktemp -d) host=$(hostname -s)
  chmod 755 "$cluster"
  export SLURM_CONF=$cluster/slurm.conf
  # A killed test cannot clean up: a separate process waits for its end, and cleans up if that was not done.
  (setsid bash -c '. "$1"; cluster=$2; while [[ -d $cluster ]] && kill -0 "$3"; do sleep 1; done; cluster_down' watch \
    "$(realpath "${BASH_SOURCE[0]}")" "$cluster" $$ </dev/null >/dev/null 2>&1 &)
  mkdir -p "$cluster"/{state,log,munge} "$cluster/spool/$host"
  chown munge:munge "$cluster/munge"
  chmod 755 "$cluster/munge"
  runuser -u munge -- mungekey --create --keyfile "$cluster/munge/key" || return 1
  runuser -u munge -- munged --key-file="$cluster/munge/key" --socket="$cluster/munge/socket" --pid-file="$cluster/munge/pid" \
    --log-file="$cluster/munge/log" --seed-file="$cluster/munge/seed" || return 1
  echo CgroupPlugin=cgroup/v1 >"$cluster/cgroup.conf"
  # cred_expire: a requeued job waits until its old credential has expired, two minutes by default.
  cat >"$cluster/slurm.conf" <<EOF
ClusterName=hpcdl
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$cluster/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool/%n
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd-%n.pid
SlurmctldLogFile=$cluster/log/slurmctld.log
SlurmdLogFile=$cluster/log/slurmd-%n.log
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes=$host MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
EOF
  slurmctld -c && slurmd || return 1
  local i
  for ((i = 0; i < 100; i++)); do
    [[ $(sinfo -h -p main -o %t 2>/dev/null) == idle ]] && return 0
    sleep 0.2
  done
  cat "$cluster"/log/* >&2
  return 1
}

# Only processes whose ids this cluster recorded.
cluster_down() {
  [[ -n ${cluster:-} && -d $cluster ]] || return 0
  squeue -h -o %A 2>/dev/null | while read -r job; do scancel "$job" 2>/dev/null; done
  local i file pid
  for ((i = 0; i < 50; i++)); do [[ -z $(squeue -h 2>/dev/null) ]] && break; sleep 0.2; done
  for file in "$cluster"/slurmd-*.pid "$cluster/slurmctld.pid" "$cluster/munge/pid"; do
    pid=$(cat "$file" 2>/dev/null) && kill "$pid" 2>/dev/null || continue
    for ((i = 0; i < 100; i++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  done
  rm -rf "$cluster"
}
