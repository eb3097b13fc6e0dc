#!/usr/bin/env bash
# Builds with ninja and shows the progress:  scripts/build.sh FOLDER [TARGET...]
#   JOBS at a time; SECONDS_LEFT, if it is set, ends it with exit code 124. The output is in FOLDER/build.log, its end
#   is shown when the build fails.
set -uo pipefail
cd "$(dirname "$0")/.."

folder=$1
shift
timeout --foreground "${SECONDS_LEFT:-0}" ninja -C "$folder" -j "${JOBS:-$(nproc)}" "$@" </dev/null 2>&1 |
  scripts/progress.sh "$(basename "$folder")" "$folder/build.log" build
status=${PIPESTATUS[0]}
((status == 0 || status == 124)) || tail -n 60 "$folder/build.log" >&2
exit "$status"
