#!/usr/bin/env bash
# Installs what one target needs on Debian or Ubuntu:  scripts/setup.sh build|demo|test|bench|fuzz|format
# Idempotent, and silent if nothing is missing. Without root it tries sudo (only if that needs no password) and
# otherwise lists the packages and the command, and stops.
set -euo pipefail

target=${1:-build}
build=(g++ cmake ninja-build make ccache git pkg-config libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
       libfmt-dev libspdlog-dev zlib1g-dev libzstd-dev libpcre2-dev libutf8proc-dev libarchive-dev libmd-dev
       libturbojpeg0-dev libpng-dev libboost-dev)
# Programs that start and isolate ranks in tests. The build uses MPI if it is installed, but does not require it.
ranks=(libopenmpi-dev openmpi-bin slurm-wlm munge iproute2)
test=("${build[@]}" libgtest-dev binutils python3 python3-venv python3-dev "${ranks[@]}")
case $target in
  build | demo) packages=("${build[@]}") ;;
  test) packages=("${test[@]}") ;;
  bench) packages=("${test[@]}" libdnnl-dev libopenblas-dev libopenblas0-openmp) ;;
  fuzz) packages=("${build[@]}" clang libclang-rt-dev) ;;
  format) packages=(git python3-venv) ;;
  *) echo "setup: unknown target '$target'; expected build, demo, test, bench, fuzz or format" >&2; exit 2 ;;
esac

# On other systems, CMake makes the same checks when it configures.
command -v dpkg-query >/dev/null || exit 0

missing=()
for p in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}\n' "$p" 2>/dev/null | head -n 1) == installed ]] || missing+=("$p")
done

if ((${#missing[@]})); then
  install=(apt-get install -y -q --no-install-recommends "${missing[@]}")
  if [[ $(id -u) == 0 ]]; then root=(env)
  elif sudo -n true 2>/dev/null; then root=(sudo -n env)
  else
    printf 'setup: "%s" needs packages that are missing, and this user may not install them. Run:\n  sudo %s\n' \
      "$target" "${install[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  # The package lists may be absent (a fresh container) or current; fetch them only when the install needs them.
  if ! "${root[@]}" DEBIAN_FRONTEND=noninteractive "${install[@]}" </dev/null >"$log" 2>&1; then
    if ! { "${root[@]}" apt-get update -q </dev/null && "${root[@]}" DEBIAN_FRONTEND=noninteractive "${install[@]}" </dev/null; } >"$log" 2>&1; then
      tail -n 20 "$log" >&2
      echo "setup: the installation failed; the lines above say why. The command was: ${install[*]}" >&2
      exit 1
    fi
  fi
fi

if [[ $target != format ]]; then
  have=$(cmake --version | sed -n 's/^cmake version //p')
  if [[ $(printf '%s\n' 3.25 "$have" | sort -V | head -n 1) != 3.25 ]]; then
    echo "setup: CMake >= 3.25 is needed, found $have (Debian 12, Ubuntu 23.04 and later have it; or: pip install cmake)" >&2
    exit 1
  fi
fi
