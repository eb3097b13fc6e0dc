#!/usr/bin/env bash
# mpi_faults.sh HPCDL: a rank over MPI that is killed, and one that is frozen. mpirun ends in time and not with 0, and no rank remains; those that are
# left name the frozen one in one sentence each. Ends with 77 if there is no mpirun.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
started=
ranks=
finish() {
  [[ -n $started ]] && kill -KILL "$started" $ranks 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT
. "$(dirname "$0")/small_run.sh"
. "$(dirname "$0")/mpi.sh"
# Rank 0 makes tokenizer and tokens while the others wait for it: done here, because a busy machine could take longer than their timeout.
small_run 1
"$hpcdl" train -c "$work/run.toml" --parallel.dp 0 --out "$work/prepared" >"$work/prepared.log" 2>&1 || fail "one rank"
small_run 1000000

ranks_below() {  # PROCESS: children of mpirun, or of the proxy of MPICH on each host
  local child
  for child in $(pgrep -P "$1"); do
    if [[ /proc/$child/exe -ef $hpcdl ]]; then echo "$child"; else ranks_below "$child"; fi
  done
}
# lost NAME SIGNAL: rank 1 of three gets the signal in the middle of its steps. Leaves $code and $work/NAME.log.
lost() {
  local name=$1 signal=$2 out="$work/$1" victim= begin rank
  "${mpirun[@]}" -n 3 "$hpcdl" train -c "$work/run.toml" --parallel.dp 3 --dist.timeout 5 --out "$out" >"$out.log" 2>&1 &
  started=$!
  over() { ! kill -0 "$started" 2>/dev/null; }
  trains() { over || { [[ -f $out/metrics.jsonl ]] && (($(wc -l <"$out/metrics.jsonl") >= 20)); }; }
  comes_true trains && ! over || fail "$name: no steps"
  grep -q "3 ranks over mpi" "$out.log" || fail "$name: not over MPI"
  ranks=$(ranks_below "$started")
  for rank in $ranks; do grep -Eqz '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=1$' "/proc/$rank/environ" && victim=$rank; done
  [[ -n $victim ]] || fail "$name: which process is rank 1?"
  begin=$SECONDS
  kill -s "$signal" "$victim"
  comes_true over || fail "$name: mpirun is still there"
  wait "$started"
  code=$?
  started=
  ((SECONDS - begin <= 35)) || fail "$name: it took $((SECONDS - begin)) s"
  gone() { for rank in $ranks; do grep -q '^State:.[^Z]' "/proc/$rank/status" 2>/dev/null && return 1; done; return 0; }  # it may not have been reaped yet
  comes_true gone || fail "$name: a rank remains"
  echo "$name: mpirun ended with $code after $((SECONDS - begin)) s"
}

lost killed KILL  # mpirun ends the others a second later: usually, but not always, they have printed their messages by then
((code != 0)) || fail "killed: mpirun says that all is well"
lost frozen STOP
# mpirun of MPICH may return the code of the frozen rank, which it has to kill.
((code == 71)) || [[ $starter != "Open MPI" && $code == 9 ]] || fail "frozen: it ended with $code"
said=$(grep -c "^hpcdl: \[dist\] rank 1 on .* does not answer: it is frozen" "$work/frozen.log")
((said >= 2)) || fail "frozen: $said ranks say so"  # mpirun wakes the frozen rank before it ends it: that rank may find the verdict and print the same
