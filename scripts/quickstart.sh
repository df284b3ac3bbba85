#!/usr/bin/env bash
# From a clone to a served, measured, checked model in one command.
#
#   scripts/quickstart.sh [--no-install] [--jobs N] [OPTION…]
#
#   --no-install  use the installed packages and the existing .venv
#   --jobs N      compile jobs (default: one per core, fewer when memory is short)
#   OPTION…       for scripts/quickstart.py: --model, --tables-gib, --criteo FILE,
#                 --qps, --duration, … (see scripts/quickstart.py --help)
#
# Writes only to artifacts/quickstart and build/release, and .venv unless --no-install.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib/install.sh
source scripts/lib/install.sh

install=yes
jobs=
rest=()
while (($#)); do
  case "$1" in
    --no-install) install=no ;;
    --jobs) jobs="${2:?--jobs needs a number}"; shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) rest+=("$1") ;;
  esac
  shift
done

if [[ $install == yes ]]; then
  refract_install_packages
  refract_install_venv
fi
refract_need_disk "$REFRACT_ROOT" 2 "the build"
# Wrong options are found before the build, not after it.
.venv/bin/python scripts/quickstart.py --check-only "${rest[@]}"

jobs="${jobs:-$(refract_build_jobs)}"
refract_use_ccache
logs=artifacts/quickstart/logs
mkdir -p "$logs"
refract_say "building with $jobs jobs (log: $logs/build.log)"
cmake --preset release >"$logs/configure.log" 2>&1 || {
  tail -n 20 "$logs/configure.log" >&2
  refract_die "cmake --preset release failed"
}
refract_build "$logs/build.log" cmake --build --preset release --target \
  refract_program refract_cpu_node_program refract_gpu_node_program \
  -- -j "$jobs" || {
  refract_show_errors "$logs/build.log"
  refract_die "the build failed (whole log: $logs/build.log)"
}
exec .venv/bin/python scripts/quickstart.py "${rest[@]}"
