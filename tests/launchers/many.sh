#!/usr/bin/env bash
# many.sh HPCDL: more ranks on this host than share memory (64) train: RANKS of them, or 256 if there is enough memory, otherwise 96.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT
. "$(dirname "$0")/small_run.sh"

gigabytes=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
[[ $limit =~ ^[0-9]+$ ]] && ((limit >> 30 < gigabytes)) && gigabytes=$((limit >> 30))
ranks=${RANKS:-$((gigabytes >= 8 ? 256 : 96))}
((gigabytes >= 3)) || skip "less than 3 GB of memory are free"
# `launch` needs two pipes for each rank, and rank 0 one connection.
ulimit -n "$(ulimit -Hn)"
[[ $(ulimit -n) == unlimited ]] || (($(ulimit -n) >= 4 * ranks)) || skip "a process may have $(ulimit -n) descriptors"
small_run 3
sed -i 's/^dp = 2/dp = 0/; s/^batch = 4/batch = 1/' "$work/run.toml"
"$hpcdl" launch -n "$ranks" -- train -c "$work/run.toml" --out "$work/run" >"$work/run.log" 2>&1 || fail "$ranks ranks"
grep -q "$ranks ranks over " "$work/run.log" || fail "they are others"
[[ -f $work/run/model/model.safetensors ]] || fail "no model"
echo "$ranks ranks trained"
