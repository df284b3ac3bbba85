#!/usr/bin/env bash
# Builds the CUDA backend alone and runs its correctness tests and measurements
# on a machine with a GPU. Needs nvcc with cuBLASLt (of the toolkit, or of the
# wheels that python3's torch brings), CMake, ninja, a C++20 compiler and python3;
# python3's torch, if present, is the baseline of a comparison. Needs no Debian package.
#
#   scripts/gpu_check.sh [--out DIR] [--build DIR] [--quick] [--build-only]
#                        [--dry-run]
#
#   --out DIR     where results go (default: artifacts/gpu_check): gpu_check.json,
#                 gpu_check.md (a table), logs
#   --build DIR   build folder (default: build/gpu_check)
#   --quick       fewer repetitions and sizes, about a minute of measuring
#   --build-only  compiles and stops, for machines without a GPU
#   --dry-run     runs everything once on stand-ins for CUDA's libraries, with this
#                 process as the GPU and PyTorch on the CPU: tests the script; its
#                 figures mean nothing. Default --out and --build end in _dry
#
# A failure costs only its own figures (bench/cuda/run_parts.py): a part of the check,
# a measurement or a comparison that fails, hangs or dies is named, and a new process
# goes on behind it. All processes end with the script. In a copy without git's history
# REFRACT_REVISION names the revision for the results.
#
# Ends within 8 minutes (a dry run: 15). Each part, the comparison with PyTorch
# included, has its own share of the time, however long the build took: parts that do
# not fit are left out and named, and earlier results stay. Exit status
# 0: every check agreed (bars may be missed: the table says so); 1: a build, a
# check or a measurement failed (gpu_check.json says which); 2:
# bad usage, or a tool is missing; 77: no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit_s=460
out=
build=
mode=full
build_only=no
dry=
while (($#)); do
  case "$1" in
    --out | --build)
      [[ -n ${2-} ]] || { echo "gpu_check.sh: $1 needs a folder" >&2; exit 2; }
      if [[ $1 == --out ]]; then out="$2"; else build="$2"; fi
      shift
      ;;
    --quick) mode=quick ;;
    --build-only) build_only=yes ;;
    --dry-run) mode=dry dry=_dry limit_s=900 ;;
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

start=$SECONDS
mkdir -p "$out"
rm -f "$out"/{check,bench,torch,gpu_check}.json "$out/gpu_check.md"

# From a cold disk a first torch.compile may take as long as the build: side by side.
warm_up=
if [[ $build_only == no ]]; then
  timeout -k 2 150 python3 bench/cuda/torch_compare.py --warm-up \
    >"$out/warm_up.log" 2>&1 </dev/null &
  warm_up=$!
fi
end_warm_up() {
  [[ -n $warm_up ]] || return 0
  kill "$warm_up" 2>/dev/null || true
  # Not for ever: a GPU that hangs may keep it.
  for ((i = 0; i < 50; ++i)); do
    kill -0 "$warm_up" 2>/dev/null || break
    sleep 0.1
  done
}
trap end_warm_up EXIT

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
  timeout 100 cmake -S runtime/cuda -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    "${options[@]}" && timeout 300 ninja -C "$build" "${targets[@]}"
} >"$out/build.log" 2>&1 || {
  tail -n 30 "$out/build.log" >&2
  echo "gpu_check.sh: the build failed (whole log: $out/build.log)" >&2
  python3 bench/cuda/summarize.py "$out" --seconds $((SECONDS - start)) --failed build
  exit 1
}
echo "   took $((SECONDS - start)) s"
[[ $build_only == no ]] || exit 0

check="${build@Q}/tests/device_check --cases 300"
bench="${build@Q}/bench/bench_cuda"
torch="python3 bench/cuda/torch_compare.py --library ${build@Q}/bench/librefract_cuda_python.so"
limits=()
case $mode in
  quick)
    check="${build@Q}/tests/device_check --cases 60"
    bench+=" --quick"
    torch+=" --quick"
    ;;
  dry)
    check="${build@Q}/emulated/device_check_emulated --cases 10 --seconds 300 --batch 2 --large 3"
    bench="${build@Q}/emulated/bench_cuda_emulated --dry-run"
    torch="python3 bench/cuda/torch_compare.py --dry-run --library"
    torch+=" ${build@Q}/emulated/librefract_cuda_python_emulated.so"
    # Emulated threads take their time.
    limits=(--part-s 120 --check-s 300 --bench-s 240)
    ;;
esac
# No other process of this script runs during the checks and measurements; exec
# forgets the trap.
end_warm_up
# The steps after the build keep some of the time even when the build takes most.
left_s=$((limit_s - SECONDS + start))
torch_s=$((left_s * 2 / 5)) least_bench_s=$((left_s / 5))
exec python3 bench/cuda/run_parts.py --out "$out" --check "$check" --bench "$bench" \
  --torch "$torch" --limit-s "$left_s" --torch-s $((torch_s < 140 ? torch_s : 140)) \
  --least-bench-s $((least_bench_s < 60 ? least_bench_s : 60)) \
  --seconds-before $((SECONDS - start)) "${limits[@]}"
