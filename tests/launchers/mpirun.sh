#!/usr/bin/env bash
# mpirun.sh HPCDL: the same command under mpirun and under `hpcdl launch` gives the same weights, and the same generated text as one process; SIGUSR1, which mpirun passes on, saves
# and ends with 75. Ends with 77 if there is no mpirun.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
started=
finish() {
  [[ -n $started ]] && kill -TERM "$started" 2>/dev/null  # mpirun ends its ranks
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT
. "$(dirname "$0")/small_run.sh"
. "$(dirname "$0")/mpi.sh"
mpi=("${mpirun[@]}" -n 2 "$hpcdl" train -c "$work/run.toml")
run() { "${mpi[@]}" "$@"; }

small_run 60
"$hpcdl" launch -n 2 -- train -c "$work/run.toml" --out "$work/launched" >"$work/launched.log" 2>&1 || fail "hpcdl launch"
grep -q "2 ranks over tcp, as hpcdl launch says" "$work/launched.log" || fail "the transport of hpcdl launch"
run --out "$work/mpi" >"$work/mpi.log" 2>&1 || fail "mpirun"
grep -q "2 ranks over .*, as $starter says" "$work/mpi.log" || fail "who started the ranks"
cmp "$work/mpi/model/model.safetensors" "$work/launched/model/model.safetensors" || fail "other weights"
run --out "$work/tcp" --dist.transport tcp >"$work/tcp.log" 2>&1 || fail "mpirun with TCP"
cmp "$work/tcp/model/model.safetensors" "$work/launched/model/model.safetensors" || fail "other weights over TCP"
words=(generate --model "$work/mpi/model" --prompt "The quick" --tokens 20)
"$hpcdl" "${words[@]}" >"$work/alone.txt" 2>"$work/generate.log" || fail "generate"
"${mpirun[@]}" -n 2 "$hpcdl" "${words[@]}" >"$work/shared.txt" 2>>"$work/generate.log" || fail "generate of two ranks"
cmp "$work/alone.txt" "$work/shared.txt" || fail "two ranks that share the layers generate another text"
# Every collective by every algorithm that has it, next to MPI's own call.
collective() {  # NAME ALGORITHM...
  local name=$1 algorithm key
  shift
  for algorithm in "$@"; do
    "${mpirun[@]}" -n 2 "$hpcdl" bench comm --collective "$name" --algorithm "$algorithm" --bytes 64K --dtype fp32 --check --json \
      --rounds 3 >"$work/comm.json" 2>"$work/comm.log" || fail "bench comm: $name by $algorithm"
    [[ $(grep -c '^}' "$work/comm.json") == 1 ]] || fail "bench comm: one object of rank 0, not: $(cat "$work/comm.json")"
    for key in us algbw busbw native_us ratio max_error; do
      grep -Eq "^ \"$key\": [0-9]" "$work/comm.json" || fail "bench comm: $name by $algorithm tells no $key"
    done
  done
}
collective all_reduce ring ring_blocking halving tree shared auto native
collective reduce_scatter ring ring_blocking halving shared auto native
collective all_gather ring ring_blocking halving shared auto native
collective all_to_all shared auto native
"${mpirun[@]}" -n 2 "$hpcdl" train -c "$work/run.toml" --out "$work/x" --no.such.key=1 >"$work/bad.log" 2>&1
(($? == 2)) || fail "a wrong key has to end with 2"

# Ranks that wait in MPI's start for a missing one are ended by a signal, and not minutes later.
cat >"$work/waits.sh" <<'EOF'
n=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}
trap 'exit 75' TERM
if [ "$n" = 1 ]; then while :; do sleep 0.1; done; fi
echo $$ >"$1.new" && mv "$1.new" "$1"
shift
exec "$@"
EOF
"${mpirun[@]}" -n 2 sh "$work/waits.sh" "$work/pid" "$hpcdl" train -c "$work/run.toml" --out "$work/waits" >"$work/waits.log" 2>&1 &
started=$!
there() { [[ -f $work/pid ]]; }
comes_true there || fail "rank 0 does not start"
sleep 2  # it installs its handlers within milliseconds; then it waits
kill -TERM "$(<"$work/pid")"
wait $started
code=$?
started=
((code == 75)) || fail "SIGTERM in MPI's start: it ended with $code"
grep -q 'asked to stop before all ranks of MPI had started' "$work/waits.log" || fail "SIGTERM in MPI's start: nothing was said"

small_run 1000000
"${mpi[@]}" --out "$work/long" >"$work/long.log" 2>&1 &
started=$!
trains() { [[ -f $work/long/metrics.jsonl ]] && (($(wc -l <"$work/long/metrics.jsonl") >= 20)); }
comes_true trains || fail "no steps"
kill -USR1 $started
wait $started
code=$?
started=
((code == 75)) || fail "SIGUSR1: it ended with $code"
grep -q 'asked to stop: saved step' "$work/long.log" || fail "SIGUSR1: nothing was saved"
echo "mpirun and hpcdl launch: the same weights"
