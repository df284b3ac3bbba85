#!/usr/bin/env bash
# Builds everything and runs every test. One command, from a clean clone on.
#
#   scripts/test.sh [--sanitizers] [--no-install] [--jobs N] [-- CTEST ARGUMENT…]
#
#   --sanitizers  also the unit tests under ASan + UBSan and under TSan, each in
#                 a build of its own
#   --no-install  use installed packages only
#   --jobs N      compile jobs (default: one per core, fewer when memory is short)
#
# Compiled objects are kept by ccache, and models that tests export in
# ~/.cache/refract/exports: a later run, also in another clone, is faster.
#
# Ends with "N passed, M failed, K skipped" and the reason of every skip. Exit
# status 0 when nothing failed, 1 otherwise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib/install.sh
source scripts/lib/install.sh
# shellcheck source=scripts/lib/presets.sh
source scripts/lib/presets.sh

sanitizers=no
install=yes
jobs=
while (($#)); do
  case "$1" in
    --sanitizers) sanitizers=yes ;;
    --no-install) install=no ;;
    --jobs) jobs="${2:?--jobs needs a number}"; shift ;;
    --) shift; break ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "test.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done

# The build needs Debian's packages and PyTorch. What only tests need is
# installed while the build runs; a part that cannot be installed prints which
# tests will be skipped.
installation=
if [[ $install == yes ]]; then
  refract_install_packages
  refract_install_venv "tritonclient[grpc,http]" geventhttpclient grpcio-health-checking \
    grpcio-reflection opentelemetry-proto flit_core
  {
    refract_install_rdma_vm
    refract_install_browser
    refract_fetch_promtool
    refract_install_torchrec
    refract_install_schemas
    refract_install_pyarrow
    refract_install_kafka
    refract_install_hdrhistogram
  } &
  installation=$!
fi
jobs="${jobs:-$(refract_build_jobs)}"
refract_use_ccache
# LibTorch's OpenMP and the tests' own threads share few cores.
export OMP_NUM_THREADS=1

results=artifacts/test-results
rm -rf "$results"
mkdir -p "$results"

# One preset: configure, build, run.
run_preset() {
  local preset="$1"
  shift
  echo "== $preset: build"
  refract_configure_preset "$results" "$preset"
  refract_build_preset "$results" "$preset" "$jobs"
  if [[ -n $installation ]]; then
    wait "$installation" || refract_die "the installation of what tests need failed"
    installation=
  fi
  echo "== $preset: test"
  refract_test_preset "$results" "$preset" "$@"
}

start=$SECONDS
run_preset release "$@"
if [[ $sanitizers == yes ]]; then
  refract_sanitizer_options
  run_preset asan -L unit
  run_preset tsan -L unit
fi
echo "== everything took $((SECONDS - start)) s"
python3 scripts/summarize_tests.py "$results"
