#!/usr/bin/env bash
# Builds the CUDA backend alone and runs its correctness tests and measurements
# on a machine with a GPU. Needs nvcc, CMake, ninja, a C++20 compiler and python3;
# python3's torch, where it has one, is compared with. None of Debian's packages.
#
#   scripts/gpu_check.sh [--out DIR] [--build DIR] [--quick] [--build-only]
#
#   --out DIR     where results go (default: artifacts/gpu_check): gpu_check.json,
#                 gpu_check.md (a table), logs
#   --build DIR   build folder (default: build/gpu_check)
#   --quick       fewer repetitions and sizes, about a minute of measuring
#   --build-only  compiles and stops: where there is no GPU
#
# Ends within 8 minutes: what does not fit is left out and named. Exit status 0:
# every check agreed (bars may be missed: the table says so); 1: a build, a check
# or a measurement failed; 2: bad usage; 77: no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit_s=460
out=artifacts/gpu_check
build=build/gpu_check
quick=()
build_only=no
while (($#)); do
  case "$1" in
    --out | --build)
      [[ -n ${2-} ]] || { echo "gpu_check.sh: $1 needs a folder" >&2; exit 2; }
      if [[ $1 == --out ]]; then out="$2"; else build="$2"; fi
      shift
      ;;
    --quick) quick=(--quick) ;;
    --build-only) build_only=yes ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
for tool in nvcc cmake ninja python3; do
  command -v "$tool" >/dev/null || {
    echo "gpu_check.sh: $tool is missing" >&2
    exit 2
  }
done

start=$SECONDS
# At least 1: 0 would mean no limit to `timeout`.
left() {
  local seconds=$((limit_s - SECONDS + start))
  echo $((seconds > 1 ? seconds : 1))
}
mkdir -p "$out"
rm -f "$out"/{check,bench,torch,gpu_check}.json "$out/gpu_check.md"

echo "== build"
architectures=()
if command -v nvidia-smi >/dev/null; then
  # Only for the GPU at hand: half the compile time.
  found="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    head -n 1 | tr -d '. ' || true)"
  [[ $found =~ ^[0-9]+$ ]] && architectures=(-DCMAKE_CUDA_ARCHITECTURES="$found")
fi
{
  cmake -S runtime/cuda -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    "${architectures[@]}" && ninja -C "$build"
} >"$out/build.log" 2>&1 || {
  tail -n 30 "$out/build.log" >&2
  echo "gpu_check.sh: the build failed (whole log: $out/build.log)" >&2
  exit 1
}
echo "   took $((SECONDS - start)) s"
[[ $build_only == no ]] || exit 0

# Runs one step with a log and what time is left; 0, 77 or 1.
step() {
  local name="$1" status=0
  shift
  echo "== $name"
  timeout "$(left)" "$@" 2>&1 | tee "$out/$name.log" || status=${PIPESTATUS[0]}
  case $status in
    0 | 77) return "$status" ;;
    124) echo "gpu_check.sh: $name was cut off at ${limit_s} s" >&2 ;;
    *) echo "gpu_check.sh: $name failed with status $status" >&2 ;;
  esac
  return 1
}

status=0
cases=300
[[ ${#quick[@]} -eq 0 ]] || cases=60
step check "$build/tests/device_check" --cases "$cases" --json "$out/check.json" || status=$?
[[ $status != 77 ]] || exit 77
# Figures of a backend that computes wrongly mean nothing.
[[ $status == 0 ]] || exit 1
step bench "$build/bench/bench_cuda" --json "$out/bench.json" "${quick[@]}" || status=1
# Python's own start and the summary need a few seconds.
step torch python3 bench/cuda/torch_compare.py \
  --library "$build/bench/librefract_cuda_python.so" \
  --json "$out/torch.json" --limit-s $(($(left) - 20)) "${quick[@]}" || {
  [[ $? == 77 ]] || status=1
}
python3 bench/cuda/summarize.py "$out" --seconds $((SECONDS - start)) || status=1
exit "$status"
