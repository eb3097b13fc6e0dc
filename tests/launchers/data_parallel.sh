#!/usr/bin/env bash
# data_parallel.sh HPCDL: one rank, and mpirun with 2 and 4 ranks that share the same batch, have the same losses to 1e-5 over 50 steps; buckets of
# any size, and waiting for each tensor, give the same weights to the bit; a profile of two ranks is one trace. Ends with 77 without mpirun.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/small_run.sh"
. "$(dirname "$0")/mpi.sh"
on() {  # RANKS NAME OPTIONS...
  local n=$1 name=$2
  shift 2
  "${mpirun[@]}" -n "$n" "$hpcdl" train -c "$work/run.toml" --out "$work/$name" --parallel.dp 0 --train.batch $((8 / n)) --train.threads 1 "$@" >"$work/$name.log" 2>&1 || fail "$name"
}
losses() {  # NAME: step and loss, for any order of their keys
  paste <(grep "\"grad_norm\"" "$work/$1/metrics.jsonl" | grep -o "\"step\": *[0-9]*" | grep -o "[0-9]*$") <(grep "\"grad_norm\"" "$work/$1/metrics.jsonl" | grep -o "\"loss\": *[0-9.e+-]*" | grep -o "[0-9.e+-]*$")
}

small_run 50
"$hpcdl" train -c "$work/run.toml" --out "$work/one" --parallel.dp 0 --train.batch 8 --train.threads 1 >"$work/one.log" 2>&1 || fail "one rank"
for n in 2 4; do
  on $n "mpi$n"
  paste <(losses one) <(losses "mpi$n") | awk -v n=$n '
    $1 != $3 { print "other steps"; exit 1 }
    { d = $2 - $4; if (d < 0) d = -d; if (d > 1e-5 * $2) { print n " ranks, step " $1 ": " $4 " instead of " $2; exit 1 } }
    END { if (NR < 50) { print "only " NR " steps"; exit 1 } }' || fail "the losses of $n ranks"
  on $n "small$n" --parallel.bucket_mb 0.02 --parallel.first_bucket_mb 0.005
  on $n "blocking$n" --parallel.bucket_mb 0 --parallel.overlap false
  for other in small blocking; do
    cmp "$work/mpi$n/model/model.safetensors" "$work/$other$n/model/model.safetensors" || fail "$other buckets, $n ranks: other weights"
  done
done
# Wrong arguments end all ranks with 2, before and after MPI has started. More than once, because mpirun sometimes crashes or hangs while it ends
# ranks that end without MPI_Finalize().
refused() {  # WORDS OPTIONS...
  local words=$1
  shift
  for ((i = 0; i < 3; i++)); do
    timeout -k 5 60 "${mpirun[@]}" -n 3 "$hpcdl" train -c "$work/run.toml" --out "$work/x" "$@" >"$work/refused.log" 2>&1
    local code=$?
    ((code == 2)) || fail "$* has to end with 2, and ended with $code"
    grep -q "$words" "$work/refused.log" || fail "$*: the message does not say what is wrong"
  done
}
refused "the world has 3 ranks" --parallel.dp 2
refused "model.vocab is 100" --parallel.dp 0 --model.vocab 100  # found when the tokenizer has been read
"${mpirun[@]}" -n 2 "$hpcdl" profile -c "$work/run.toml" --steps 3 --train.threads 1 --trace "$work/trace.json" >"$work/profile.log" 2>&1 || fail "profile"
grep -q "hidden behind records" "$work/profile.log" || fail "the report of the exchange"
grep -q '"exchange"' "$work/trace.json" || fail "the exchange in the trace"
grep -q 'rank 0' "$work/trace.json" && grep -q 'rank 1' "$work/trace.json" || fail "both ranks in the trace"
echo "2 and 4 ranks of mpirun train what one trains; buckets change no bit"
