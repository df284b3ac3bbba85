#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz with Clang, libFuzzer, AddressSanitizer
# and UndefinedBehaviorSanitizer, and runs each.
#
#   scripts/fuzz.sh [SECONDS] [--target NAME]… [--jobs N] [--junit FILE] [--no-install]
#   scripts/fuzz.sh --write-seeds
#
#   SECONDS        per target (default 60)
#   --target NAME  only this target (tests/fuzz/NAME_fuzz.cc); may be repeated
#   --jobs N       targets that run side by side (default: one per core)
#   --junit FILE   write the results for scripts/summarize_tests.py, too
#   --no-install   use installed packages only
#   --write-seeds  write the seeds of tests/fuzz/corpus again from the encoders,
#                  after a format changed; needs no Clang
#
# New inputs are collected in artifacts/fuzz/corpus and used again by the next
# run; an input that breaks a target is left in artifacts/fuzz/crashes, and the
# command to repeat it is printed. Ends with one line per target. Exit status 0
# when no target broke.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib/install.sh
source scripts/lib/install.sh

seconds=60
targets=()
jobs="$(refract_cores)"
install=yes
seeds=no
junit=
while (($#)); do
  case "$1" in
    --target) targets+=("${2:?--target needs a name}"); shift ;;
    --jobs) jobs="${2:?--jobs needs a number}"; shift ;;
    --junit) junit="${2:?--junit needs a file}"; shift ;;
    --no-install) install=no ;;
    --write-seeds) seeds=yes ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    [1-9]*) [[ $1 =~ ^[0-9]+$ ]] || refract_die "bad number of seconds: $1"
      seconds="$1" ;;
    *) echo "fuzz.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || refract_die "bad number of jobs: $jobs"

all=()
for file in tests/fuzz/*_fuzz.cc; do
  all+=("$(basename "$file" _fuzz.cc)")
done
((${#targets[@]})) || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [[ " ${all[*]} " == *" $target "* ]] ||
    refract_die "no fuzz target $target; there are: ${all[*]}"
done

# refract_fuzz_build PRESET TARGET…
refract_fuzz_build() {
  local preset="$1" log="artifacts/fuzz/build-$1.log"
  shift
  mkdir -p artifacts/fuzz
  cmake --preset "$preset" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    refract_die "cmake --preset $preset failed"
  }
  cmake --build "build/$preset" --target "$@" -- -j "$(refract_build_jobs)" \
    >"$log" 2>&1 || {
    refract_show_errors "$log"
    refract_die "the $preset build failed (whole log: $log)"
  }
}

refract_use_ccache
if [[ $seeds == yes ]]; then
  replays=("${targets[@]/#/fuzz_}")
  refract_fuzz_build release "${replays[@]/%/_replay}"
  for target in "${targets[@]}"; do
    "build/release/tests/fuzz_${target}_replay" "tests/fuzz/corpus/$target" \
      --write-seeds
  done
  exit
fi

if [[ $install == yes ]]; then
  refract_install_packages clang-14 libclang-rt-14-dev
  refract_install_venv
fi
refract_fuzz_build fuzz "${targets[@]/#/fuzz_}"

out=artifacts/fuzz
mkdir -p "$out/crashes" "$out/corpus"
# One target for the given time; its log keeps libFuzzer's report.
run_target() {
  local target="$1" log="$out/$1.log"
  mkdir -p "$out/corpus/$target"
  # -rss_limit_mb: a peer can make a node hold far less than this.
  # -timeout: seconds for one input.
  if "build/fuzz/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$out/crashes/$target-" "$out/corpus/$target" \
    "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    echo "$target: clean, $(sed -n 's/^Done \(.*\)$/\1/p' "$log"), $(
      sed -n 's/.*\(cov: [0-9]*\).*/\1/p' "$log" | tail -n 1)"
  else
    echo "$target: BROKEN: $(grep -m 1 -E \
      'ERROR: |runtime error|Check failed' "$log" || tail -n 1 "$log")"
    echo "  log: $log"
    sed -n "s|.*Test unit written to \(.*\)|  again: build/fuzz/fuzz/fuzz_$target \1|p" "$log"
    return 1
  fi
}
export -f run_target
export out seconds
export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1"
rm -f "$out"/*.clean
status=0
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I {} bash -c \
  'run_target {} && touch "$out/{}.clean"' || status=1
if [[ -n $junit ]]; then
  {
    echo '<testsuite name="fuzz">'
    for target in "${targets[@]}"; do
      state=fail
      [[ ! -e $out/$target.clean ]] || state=run
      echo "<testcase name=\"fuzz/$target\" status=\"$state\"/>"
    done
    echo '</testsuite>'
  } >"$junit"
fi
exit "$status"
