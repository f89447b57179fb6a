#!/usr/bin/env bash
# Run Slurm on this one machine, without systemd and without cgroups, to try jobs before they go to
# a real cluster. Munge, slurmctld and slurmd run as the user who calls this (root or not), listen on
# this machine, and keep all they write in FOLDER: the system's own Slurm, if any, is not touched.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: setup-one-machine.sh install        install Debian's packages (as root)
       setup-one-machine.sh start FOLDER   start Slurm, and print the setting that finds it
       setup-one-machine.sh stop FOLDER    cancel all jobs, and end what start has started

The path of FOLDER must be short (up to 80 characters), and it must not be on a network file
system. Settings in the environment:

  SLURM_CPUS     CPUs that the node claims, its real ones or more (twice the real ones and 2, so
                 that a driver and a few workers run at once)
  SLURM_PORT     port of slurmctld; slurmd has the next one (16817)
  SLURM_SECONDS  seconds to wait for the node (30)
TEXT
}

fail() {
    echo "$*" >&2
    exit 1
}

write_conf() {
    local cpus=${SLURM_CPUS:-$((2 * $(nproc) + 2))} port=${SLURM_PORT:-16817} memory host user
    [[ $cpus =~ ^[1-9][0-9]*$ ]] || fail "SLURM_CPUS is '$cpus', but must be a whole number from 1 on."
    [[ $port =~ ^[1-9][0-9]*$ && $port -lt 65535 ]] || fail "SLURM_PORT is '$port', but must be a port below 65535."
    memory=$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)
    host=$(hostname -s)
    user=$(id -un)
    cat > "$folder/slurm.conf" <<TEXT
# Written by setup-one-machine.sh.
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
# Ports on 127.0.0.1 only.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
# No cgroups and no systemd: processes are found in /proc, memory is booked but not enforced.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
# The node may claim more CPUs than there are.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=100000
ScronParameters=enable
ReturnToService=2
KillWait=10
MinJobAge=600
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
TEXT
}

pid_of() {
    local pid='' command=''
    [[ ! -s $folder/$1.pid ]] || read -r pid < "$folder/$1.pid" || true
    # A number that meanwhile belongs to another program is not ours.
    if [[ -n $pid && -r /proc/$pid/cmdline ]]; then
        IFS= read -r -d '' command < "/proc/$pid/cmdline" || true
    fi
    [[ ${command##*/} != "$1" ]] || echo "$pid"
}

start() {
    for program in munged slurmctld slurmd sinfo; do
        command -v "$program" > /dev/null || fail "$program is not installed: run '$0 install' as root."
    done
    [[ ${#folder} -le 80 ]] || fail "$folder has ${#folder} characters, but at most 80 may be: give a shorter path."
    for program in munged slurmctld slurmd; do
        [[ -z $(pid_of "$program") ]] || fail "$program runs already for $folder: run '$0 stop $folder' first."
    done
    chmod 755 "$folder"
    mkdir -p "$folder/state" "$folder/spool"
    if [[ ! -s $folder/munge.key ]]; then
        (umask 077 && head -c 1024 /dev/urandom > "$folder/munge.key")
    fi
    write_conf
    munged --num-threads=2 --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
        --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
    slurmctld
    slurmd
    wait_for_node
    echo "export SLURM_CONF=$SLURM_CONF"
}

wait_for_node() {
    local seconds=${SLURM_SECONDS:-30} state=''
    for ((i = 0; i < 4 * seconds; i++)); do
        state=$(sinfo --noheader --format=%t 2>&1 || true)
        [[ $state != idle && $state != mix ]] || return 0
        sleep 0.25
    done
    tail -n 5 "$folder"/*.log >&2 || true
    stop
    fail "The node is '$state' after $seconds s, but must be idle: see the logs in $folder."
}

stop() {
    if [[ -n $(pid_of slurmctld) ]]; then
        # Steps that nobody waits for would outlive slurmd.
        scancel --full --user="$(id -un)" 2> /dev/null || true
        for ((i = 0; i < 60; i++)); do
            [[ -n $(squeue --noheader --states=running,completing 2> /dev/null) ]] || break
            sleep 0.25
        done
    fi
    for program in slurmd slurmctld munged; do
        pid=$(pid_of "$program")
        [[ -z $pid ]] || kill "$pid" 2> /dev/null || true
        for ((i = 0; i < 40; i++)); do
            [[ -n $(pid_of "$program") ]] || break
            sleep 0.25
        done
        [[ -z $(pid_of "$program") ]] || kill -KILL "$(pid_of "$program")"
    done
}

case ${1:-},$# in
    install,1)
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends munge slurm-wlm
        ;;
    start,2 | stop,2)
        [[ $1 != start ]] || mkdir -p "$2"
        folder=$(cd "$2" && pwd)
        export SLURM_CONF=$folder/slurm.conf
        "$1"
        ;;
    *) usage >&2; exit 2 ;;
esac
