#!/usr/bin/env bash
# Builds the CUDA backend alone and runs its correctness tests and measurements
# on a machine with a GPU. Needs nvcc with cuBLASLt (of the toolkit, or of the
# wheels that python3's torch brings), CMake, ninja, a C++20 compiler and python3;
# python3's torch, where it has one, is compared with. None of Debian's packages.
#
#   scripts/gpu_check.sh [--out DIR] [--build DIR] [--quick] [--build-only]
#                        [--dry-run]
#
#   --out DIR     where results go (default: artifacts/gpu_check): gpu_check.json,
#                 gpu_check.md (a table), logs
#   --build DIR   build folder (default: build/gpu_check)
#   --quick       fewer repetitions and sizes, about a minute of measuring
#   --build-only  compiles and stops: where there is no GPU
#   --dry-run     all of it, once, on stand-ins for CUDA's libraries whose GPU is
#                 this process and with PyTorch on the CPU: shows that the script
#                 works; its figures mean nothing. Default --out and --build end
#                 in _dry
#
# REFRACT_EARLY_STARTS (docs/gpu.md) is set by this script: the check forces early
# starts; where it fails with them, everything is checked and measured without.
#
# Ends within 8 minutes, each part within its own share of them: what does not
# fit is left out and named, and results of the parts before it stay. Exit status
# 0: every check agreed (bars may be missed: the table says so); 1: a build, a
# check or a measurement failed (gpu_check.json says which, beside the rest); 2:
# bad usage, or a tool is missing; 77: no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit_s=460
out=
build=
quick=()
build_only=no
dry=
while (($#)); do
  case "$1" in
    --out | --build)
      [[ -n ${2-} ]] || { echo "gpu_check.sh: $1 needs a folder" >&2; exit 2; }
      if [[ $1 == --out ]]; then out="$2"; else build="$2"; fi
      shift
      ;;
    --quick) quick=(--quick) ;;
    --build-only) build_only=yes ;;
    --dry-run) dry=_dry ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
out="${out:-artifacts/gpu_check$dry}"
build="${build:-build/gpu_check$dry}"
# Toolkits are not always on the path, nor are the tools of python3's environment.
if ! command -v nvcc >/dev/null; then
  for folder in "${CUDA_HOME-}" "${CUDA_PATH-}" /usr/local/cuda /usr/local/cuda-* \
    /opt/cuda; do
    if [[ -n $folder && -x $folder/bin/nvcc ]]; then
      PATH="$folder/bin:$PATH"
      break
    fi
  done
fi
if command -v python3 >/dev/null &&
  ! { command -v cmake && command -v ninja; } >/dev/null; then
  PATH="$PATH:$(python3 -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"
fi
for tool in nvcc cmake ninja python3; do
  command -v "$tool" >/dev/null || {
    echo "gpu_check.sh: $tool is missing" >&2
    exit 2
  }
done

unset REFRACT_EARLY_STARTS

start=$SECONDS
# left [SECONDS]: what is left, at most SECONDS. At least 1: 0 would mean no limit
# to `timeout`.
left() {
  local seconds=$((limit_s - SECONDS + start))
  ((${1:-$seconds} >= seconds)) || seconds=$1
  echo $((seconds > 1 ? seconds : 1))
}
mkdir -p "$out"
rm -f "$out"/{check,bench,torch,gpu_check}.json "$out/gpu_check.md"
status=0
failed=()
summarize() {
  python3 bench/cuda/summarize.py "$out" --seconds $((SECONDS - start)) \
    "${failed[@]/#/--failed=}" || status=1
}

echo "== build"
options=()
targets=(all)
[[ -z $dry ]] || targets=(cuda_emulated)
if [[ -z $dry ]] && command -v nvidia-smi >/dev/null; then
  # Only for the GPU at hand: half the compile time.
  found="$(timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    head -n 1 | tr -d '. ' || true)"
  [[ $found =~ ^[0-9]+$ ]] && options+=(-DCMAKE_CUDA_ARCHITECTURES="$found")
fi
# Where a toolkit comes without cuBLASLt: that of torch's wheels.
wheels="$(python3 -c '
import glob, os, sysconfig
root = os.path.join(sysconfig.get_path("purelib"), "nvidia")
print(";".join(sorted(glob.glob(os.path.join(root, "c*")), reverse=True)))' || true)"
[[ -z $wheels ]] || options+=(-DREFRACT_CUBLASLT_HINTS="$wheels")
{
  cmake -S runtime/cuda -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    "${options[@]}" && timeout "$(left 300)" ninja -C "$build" "${targets[@]}"
} >"$out/build.log" 2>&1 || {
  tail -n 30 "$out/build.log" >&2
  echo "gpu_check.sh: the build failed (whole log: $out/build.log)" >&2
  failed+=(build)
  summarize
  exit 1
}
echo "   took $((SECONDS - start)) s"
[[ $build_only == no ]] || exit 0

# step NAME SECONDS COMMAND…: with a log and a limit; 0, 77 or 1.
step() {
  local name="$1" limit status=0
  limit="$(left "$2")"
  shift 2
  echo "== $name"
  timeout -k 5 "$limit" "$@" 2>&1 | tee "$out/$name.log" || status=${PIPESTATUS[0]}
  case $status in
    0 | 77) return "$status" ;;
    124 | 137) echo "gpu_check.sh: $name was cut off after $limit s" >&2 ;;
    *) echo "gpu_check.sh: $name failed with status $status" >&2 ;;
  esac
  failed+=("$name")
  return 1
}

check=("$build/tests/device_check" --cases 300)
bench=("$build/bench/bench_cuda" "${quick[@]}")
library="$build/bench/librefract_cuda_python.so"
[[ ${#quick[@]} -eq 0 ]] || check=("$build/tests/device_check" --cases 60)
if [[ -n $dry ]]; then
  check=("$build/emulated/device_check_emulated" --cases 10 --batch 2 --large 3)
  bench=("$build/emulated/bench_cuda_emulated" --dry-run)
  library="$build/emulated/librefract_cuda_python_emulated.so"
  quick=(--dry-run)
fi
# With early starts wherever they are possible. Where that fails, without any: they
# are then what failed, and nothing after it has them.
step early_starts 120 env REFRACT_EARLY_STARTS=always \
  "${check[@]}" --json "$out/check.json" || status=$?
[[ $status != 77 ]] || exit 77
if [[ $status != 0 ]]; then
  export REFRACT_EARLY_STARTS=never
  rm -f "$out/check.json"
  # Figures of a backend that computes wrongly mean nothing.
  step check 120 "${check[@]}" --json "$out/check.json" || {
    summarize
    exit 1
  }
fi
step bench 150 "${bench[@]}" --json "$out/bench.json" || status=1
# Python's own start and the summary need a few seconds.
step torch "$limit_s" python3 bench/cuda/torch_compare.py --library "$library" \
  --json "$out/torch.json" --limit-s $(($(left) - 20)) "${quick[@]}" || {
  [[ $? == 77 ]] || status=1
}
summarize
exit "$status"
