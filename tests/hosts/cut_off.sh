#!/usr/bin/env bash
# cut_off.sh HPCDL: hosts that are network namespaces, joined by a switch of 1 Gbit/s. Training over two of them, with mpirun, with hpcdl launch
# and with one command per host; then one host is cut off in the middle of the steps: both ranks end with 71 within 30 s, and name each other.
# Ends with 77 if namespaces cannot be made.
set -uo pipefail
hpcdl=$(realpath "$1") here=$(realpath "$(dirname "$0")")
work=$(mktemp -d) id=hpcdl$$ made=()
. "$here/../launchers/small_run.sh"
ranks=()
finish() {
  ((${#ranks[@]})) && kill -KILL "${ranks[@]}" 2>/dev/null
  for n in "${made[@]}"; do ip netns del "$n"; done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT

[[ $(id -u) == 0 ]] || skip "not root"
for program in ip tc unshare; do command -v $program >/dev/null || skip "no $program (iproute2, util-linux)"; done
namespace() { ip netns add "$id$1" 2>/dev/null && made+=("$id$1"); }
namespace sw && ip -n "${id}sw" link add br0 type bridge && ip -n "${id}sw" link set br0 up || skip "this kernel has no network namespaces or bridges for us"
for i in 0 1; do
  h=$id$i
  namespace $i && ip link add v$i netns "$h" type veth peer name p$i netns "${id}sw" && ip -n "${id}sw" link set p$i master br0 up &&
    ip -n "$h" addr add 10.77.0.$((i + 1))/24 dev v$i && ip -n "$h" link set v$i up && ip -n "$h" link set lo up &&
    ip netns exec "$h" tc qdisc add dev v$i root tbf rate 1gbit burst 256kb latency 20ms || skip "no veth or no tbf here"
done
on() { local i=$1; shift; ip netns exec "$id$i" unshare --uts -- sh -c "hostname h$i; exec \"\$@\"" sh "$@"; }

small_run 40
start() {  # HOST OUT [WORDS...]: rank HOST of two, into $work/OUT.HOST.log
  local i=$1 out=$2
  shift 2
  on "$i" "$hpcdl" train -c "$work/run.toml" --out "$work/$out" --dist.rank "$i" --dist.world 2 --dist.method tcp://10.77.0.1:29511 --dist.init_timeout 60 "$@" >"$work/$out.$i.log" 2>&1 &
  ranks[i]=$!
}
start 0 two && start 1 two
wait "${ranks[0]}" || fail "rank 0 on two hosts"
wait "${ranks[1]}" || fail "rank 1 on two hosts"

# Called by mpirun and hpcdl launch instead of ssh: ADDRESS COMMAND...
printf '#!/bin/sh\ni=$(( ${1##*.} - 1 )); shift; exec ip netns exec %s$i unshare --uts -- sh -c "hostname h$i; $*"\n' "$id" >"$work/agent"
chmod +x "$work/agent"
launch() { on 0 "$hpcdl" launch -n 1 --hosts 10.77.0.1,10.77.0.2 --ssh "$work/agent" "$@"; }
launch -- train -c "$work/run.toml" --out "$work/launched" >"$work/launched.log" 2>&1 || fail "hpcdl launch --hosts over two hosts"
cmp "$work/launched/model/model.safetensors" "$work/two/model/model.safetensors" || fail "hpcdl launch --hosts: other weights"

across() {  # WORDS...: runs hpcdl by mpirun over both hosts
  on 0 mpirun --bind-to none --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1 \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
    --mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 3 --mca oob_tcp_keepalive_probes 3 -H 10.77.0.1:1,10.77.0.2:1 -np 2 \
    "$hpcdl" "$@" </dev/null
}
if command -v mpirun >/dev/null; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  across bench comm --collective all_reduce --algorithm ring --bytes 64K --check --json >"$work/comm.json" 2>"$work/comm.log" || fail "bench comm over two hosts"
  grep -q '"ratio"' "$work/comm.json" || fail "bench comm: $(cat "$work/comm.json")"
  across train -c "$work/run.toml" --out "$work/mpi" >"$work/mpi.log" 2>&1 || fail "mpirun over two hosts"
  cmp "$work/mpi/model/model.safetensors" "$work/two/model/model.safetensors" || fail "mpirun: other weights"
fi

small_run 1000000
start 0 cut && start 1 cut
trains() { [[ -f $work/cut/metrics.jsonl ]] && (($(wc -l <"$work/cut/metrics.jsonl") >= 20)); }
comes_true trains || fail "no steps over two hosts"
ip -n "${id}sw" link set p1 down
cut=$(date +%s)
for i in 0 1; do
  wait "${ranks[i]}"
  code=$?
  ((code == 71)) || fail "rank $i ended with $code after $(($(date +%s) - cut)) s"
done
took=$(($(date +%s) - cut))
((took <= 30)) || fail "it took $took s"
grep -q 'h1' "$work/cut.0.log" || fail "rank 0 does not name h1"
grep -q 'h0' "$work/cut.1.log" || fail "rank 1 does not name h0"
echo "host h1 was cut off: both ranks ended with 71 after $took s"
grep -h 'hpcdl: ' "$work"/cut.?.log
