#!/usr/bin/env bash
# The unit tests under ASan + UBSan and under TSan, and sanitized fuzzing of
# every target, within a limit of time.
#
#   scripts/nightly.sh [--minutes N] [--part NAME] [--only REGEX] [--jobs N] [--no-install]
#
#   --minutes N    limit of everything, builds included (default 60). Whatever has
#                  not run by then counts as failed. Fuzzing takes the time that
#                  the tests leave, at least 10 s per target
#   --part NAME    only this part: asan, tsan or fuzz
#   --only REGEX   only unit tests and fuzz targets (fuzz/NAME) whose name matches;
#                  builds nothing else
#   --jobs N       compile jobs (default: one per core, fewer when memory is short)
#   --no-install   use installed packages only
#
# Ends with "N passed, M failed, K skipped" and the reason of every skip, as
# scripts/test.sh does. Exit status 0 when nothing failed, 1 otherwise. Results
# are in artifacts/nightly, inputs that broke a target in artifacts/fuzz/crashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib/install.sh
source scripts/lib/install.sh
# shellcheck source=scripts/lib/presets.sh
source scripts/lib/presets.sh

minutes=60
part=
only=
jobs=
install=yes
while (($#)); do
  case "$1" in
    --minutes) minutes="${2:?--minutes needs a number}"; shift ;;
    --part) part="${2:?--part needs a name}"; shift ;;
    --only) only="${2:?--only needs a regular expression}"; shift ;;
    --jobs) jobs="${2:?--jobs needs a number}"; shift ;;
    --no-install) install=no ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "nightly.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[[ $minutes =~ ^[1-9][0-9]*$ ]] || refract_die "bad number of minutes: $minutes"
[[ ${part:-asan} =~ ^(asan|tsan|fuzz)$ ]] || refract_die "bad name of a part: $part"
[[ ${jobs:-1} =~ ^[1-9][0-9]*$ ]] || refract_die "bad number of jobs: $jobs"
end=$((SECONDS + minutes * 60))
left() { echo $((end > SECONDS ? end - SECONDS : 1)); }

if [[ $install == yes ]]; then
  refract_install_packages clang-14 libclang-rt-14-dev
  refract_install_venv
fi
jobs="${jobs:-$(refract_build_jobs)}"
refract_use_ccache
refract_sanitizer_options
# LibTorch's OpenMP and the tests' own threads share few cores.
export OMP_NUM_THREADS=1

results=artifacts/nightly
rm -rf "$results"
mkdir -p "$results"

# timed WHAT COMMAND…: says how long the command took.
timed() {
  local TIMEFORMAT="$1: %0R s, %0U + %0S s of processors"
  shift
  time "$@"
}

# Runs one preset of sanitizers, in a subshell, so that a preset that fails does
# not stop the others.
run_sanitizer() (
  preset="$1"
  REFRACT_BUILD_TIMEOUT_S="$(left)"
  # Until the build has begun, this marks that the preset was to run.
  : >"$results/$preset-build.log"
  refract_configure_preset "$results" "$preset"
  targets=()
  if [[ -n $only ]]; then
    while IFS= read -r name; do
      name="${name//\//_}"
      [[ $name != fuzz_* ]] || name+=_replay
      targets+=("$name")
    done < <(refract_list_tests "$preset" -L unit -R "$only")
    if ((${#targets[@]} == 0)); then
      rm "$results/$preset-build.log"
      refract_say "$preset: no test matches $only"
      exit 0
    fi
  fi
  timed "$preset, build" \
    refract_build_preset "$results" "$preset" "$jobs" "${targets[@]}"
  # A time that is over would be tomorrow's to ctest.
  (($(left) >= 5)) || refract_die "$preset: no time left for its tests"
  timed "$preset, tests" refract_test_preset "$results" "$preset" -L unit -R "${only:-.}" \
    --stop-time "$(date -d "+$(left) seconds" +%H:%M:%S)"
)

run_fuzz() (
  options=() targets=()
  for file in tests/fuzz/*_fuzz.cc; do
    name="$(basename "$file" _fuzz.cc)"
    [[ "fuzz/$name" =~ $only ]] || continue
    options+=(--target "$name")
    targets+=("fuzz_$name")
  done
  if ((${#targets[@]} == 0)); then
    refract_say "fuzz: no target matches $only"
    exit 0
  fi
  REFRACT_BUILD_TIMEOUT_S="$(left)"
  : >"$results/fuzz-build.log"
  refract_configure_preset "$results" fuzz
  timed "fuzz, build" refract_build_preset "$results" fuzz "$jobs" "${targets[@]}"
  # Each round runs a target on every core.
  local cores rounds
  cores="$(refract_cores)"
  rounds=$(((${#targets[@]} + cores - 1) / cores))
  seconds=$(($(left) / rounds))
  ((seconds >= 10)) || seconds=10
  scripts/fuzz.sh "$seconds" "${options[@]}" --no-install --junit "$results/fuzz.xml"
)

for step in ${part:-asan tsan fuzz}; do
  echo "== $step, $(($(left) / 60)) min left"
  if [[ $step == fuzz ]]; then run_fuzz || true; else run_sanitizer "$step" || true; fi
done
echo "== everything took $SECONDS s of $((minutes * 60))"
python3 scripts/summarize_tests.py "$results"
