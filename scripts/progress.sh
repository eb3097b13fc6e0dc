#!/usr/bin/env bash
# Shows the progress of ninja or ctest:  ninja ... 2>&1 | scripts/progress.sh NAME LOG build|tests
# The output goes into LOG. On a terminal one line is rewritten; elsewhere a line is printed each minute, in CI every five
# minutes. Tests that fail or are skipped are shown at once, with their output.
set -uo pipefail

name=$1 log=$2 kind=$3
every=60 terminal=0
[[ -z ${CI:-} ]] || every=300
if [[ -t 2 && ${TERM:-dumb} != dumb ]]; then terminal=1; fi
done= all= said=$SECONDS

state() { printf '== %s: %s of %s %s, %d:%02d' "$name" "${done:-0}" "${all:-?}" "$([[ $kind == build ]] && echo steps || echo tests)" $((SECONDS / 60)) $((SECONDS % 60)); }
clear_line() { ((!terminal)) || printf '\r\e[K' >&2; }
show() {
  if ((terminal)); then
    printf '\r\e[K%s' "$(state)" >&2
  elif ((SECONDS - said >= every)); then
    said=$SECONDS
    echo "$(state)" >&2
  fi
}

: >"$log"
while true; do
  IFS= read -r -t 5 line
  status=$?
  ((status <= 128)) || { show; continue; }  # no output within 5 s
  ((status == 0)) || [[ -n $line ]] || break
  printf '%s\n' "$line" >>"$log"
  if [[ $kind == build ]]; then
    [[ ! $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
  elif [[ $line =~ ^\ *([0-9]+)/([0-9]+)\ Test ]]; then
    done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    [[ $line == *" Passed "* ]] || { clear_line; echo "$line"; }
  elif [[ ! $line =~ ^(\ *Start\ |Test\ project|Internal\ ctest|$) ]]; then
    clear_line
    echo "$line"
  fi
  show
done
clear_line
