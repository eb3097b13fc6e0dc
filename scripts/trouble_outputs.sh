#!/usr/bin/env bash
# Runs the commands of docs/troubleshooting.md and of docs/distributed.md, "When something goes wrong", and writes the output of each to a file in FOLDER,
# which scripts/results_pages.py puts into the pages. About a minute; one program that wastes a processor is started and ended again.
#   scripts/trouble_outputs.sh bench/results/MACHINE     HPCDL: the program (build/release/hpcdl)
set -uo pipefail
out=$(realpath -m "${1:?a folder for the outputs}")
cd "$(dirname "$0")/.."
hpcdl() { "$program" "$@"; }
program=$(realpath "${HPCDL:-build/release/hpcdl}")
work=$(mktemp -d)
others=()
finish() {
  for p in "${others[@]}"; do kill -KILL "$p" 2>/dev/null; done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT
cp -r examples "$work"
cd "$work" || exit 1
mkdir -p "$out"
image=(-c examples/cifar10.toml) small=(-c examples/cifar10.toml -c examples/small.toml)

# show NAME KEEP COMMAND...: the command, the lines that match KEEP, "..." for others, and the exit code if it is not 0
show() {
  local name=$1 keep=$2 code
  shift 2
  "$@" >"$work/said" 2>&1 </dev/null
  code=$?
  {
    printf '$ %s%s\n' "$*" "$( ((code)) && echo '; echo $?')"
    sed "s/\b$(hostname)\b/node/g" "$work/said" | awk -v keep="$keep" '$0 ~ keep { if (cut && shown) print "..."; print; cut = 0; shown = 1; next } { cut = 1 }'
    ((code == 0)) || echo "$code"
  } >"$out/trouble_$name.txt"
}

show memory . hpcdl train "${image[@]}" --memory
show limit 'available|would take less|change|train\.|^hpcdl' hpcdl train "${image[@]}" --train.memory_limit=345MiB --out run
show loading_0 '^step.*data' hpcdl train "${small[@]}" --data.workers=0 --out w0
show loading_2 '^step.*data' hpcdl train "${small[@]}" --data.workers=2 --out w2
show divergence . hpcdl train "${small[@]}" --train.base_batch=4 --train.warmup=0 --out cold
show nan . hpcdl train "${small[@]}" --train.lr=100 --train.warmup=0 --train.lr_scaling=none --train.base_batch=0 --out bad
show key . hpcdl train "${image[@]}" --train.nesterov=true --train.optimizer=adamw --out r

# Two ranks share the processors with a program that wastes one.
sh -c 'while :; do :; done' &
others+=($!)
show ranks 'critical path|rank [01] .*%$|made others wait|came last|traces of' hpcdl launch -n 2 -- profile "${image[@]}" --model.channels=16 --train.batch=32 --train.threads=1 --steps 40 --warmup 2 --trace trace.json.gz
kill -KILL "${others[0]}"
wait "${others[0]}" 2>/dev/null

# lost NAME SIGNAL: two ranks train, one gets the signal
lost() {
  HPCDL_DIST_TIMEOUT=5 "$program" launch -n 2 --grace 2 -- train "${small[@]}" --train.steps=1000000 --out "$1" >"$work/said" 2>&1 &
  local launched=$! rank
  others+=($launched)
  for ((i = 0; i < 300; i++)); do
    [[ -f $1/metrics.jsonl ]] && (($(wc -l <"$1/metrics.jsonl") >= 5)) && break
    sleep 0.1
  done
  rank=$(cut -d ' ' -f 2 "/proc/$launched/task/$launched/children")
  kill "-$2" "$rank"
  wait "$launched"
  grep -o '\[dist\] rank [0-9]* .*' "$work/said" | head -n 1 | sed "s/\b$(hostname)\b/node/g" >"$out/trouble_$1.txt"
}
lost killed KILL
lost frozen STOP
