# How steps run and are reported, for scripts that source this file: each has a log, $out/NAME.log, and a row of the table, which ends
# with the log's last line. The script defines two functions: run NAME ... runs a step by `logged`, note NAME writes its row by `noted`.
failed=0
rows=()
sides=()

logged() {  # NAME COMMAND...
  local name=$1 start=$SECONDS status=ok last
  shift
  "$@" >"$out/$name.log" 2>&1 </dev/null || status=FAILED
  last=$(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c1-90)
  printf '%-12s %-7s %4d s  %s\n' "$name" "$status" $((SECONDS - start)) "$last" >"$out/$name.row"
  [[ $status == ok ]]
}
noted() {  # NAME: whether it succeeded
  rows+=("$(cat "$out/$1.row")")
  echo "${rows[-1]}" >&2
  [[ ${rows[-1]} =~ ^[a-z_0-9]+\ +ok ]] || { failed=$((failed + 1)); return 1; }
}

# step: alone on the machine. beside: at the same time as others, for untimed steps; together waits for all of those.
step() {
  run "$@"
  note "$1"
}
beside() {
  run "$@" &
  sides+=("$1" $!)
}
together() {
  local i
  for ((i = 0; i < ${#sides[@]}; i += 2)); do
    wait "${sides[i + 1]}"
    note "${sides[i]}"
  done
  sides=()
}
