# Installation for scripts/quickstart.sh and scripts/test.sh: Debian packages
# and the Python environment. Sourced, not run; every function is idempotent and
# needs no network when nothing is missing. Messages go to stderr.

REFRACT_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
REFRACT_VENV="$REFRACT_ROOT/.venv"
REFRACT_TORCH_VERSION=2.11.0

REFRACT_PACKAGES=(
  g++ cmake ninja-build pkg-config git ccache ca-certificates curl
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libabsl-dev libgoogle-glog-dev libcli11-dev nlohmann-json3-dev libxxhash-dev
  libboost-dev libgtest-dev libgmock-dev libhwloc-dev libibverbs-dev liburing-dev
  librdkafka-dev prometheus-cpp-dev
  # The CMake files of gRPC's package look for these.
  libc-ares-dev libre2-dev libssl-dev zlib1g-dev
)

# Packages of the emulated machine with soft-RoCE (tests/rdma_vm), on which
# tests of verbs run without an RDMA device. Only scripts/test.sh installs
# these.
REFRACT_RDMA_VM_PACKAGES=(
  qemu-system-x86 busybox-static cpio kmod iproute2
  rdma-core ibverbs-providers ibverbs-utils perftest
)

# The tests of pages draw them in a browser. Only scripts/test.sh installs it.
REFRACT_PAGE_PACKAGES=(chromium)

# The wheel has 4.7 GiB unpacked; pip needs the archives at the same time.
REFRACT_VENV_GIB=8

# refract_die LINE: prints one line and exits with status 1.
refract_die() {
  echo "$(basename "$0"): error: $*" >&2
  exit 1
}

refract_say() {
  echo "$(basename "$0"): $*" >&2
}

# refract_show_errors LOG: prints the errors of a build's log, or its end when
# no line reports an error (a process was killed). Never fails.
refract_show_errors() {
  { grep -E -A 8 'error|FAILED' "$1" || tail -n 20 "$1"; } | head -n 40 >&2 ||
    true
}

# refract_build LOG COMMAND…: runs a build into LOG and shows how far it is and about
# how long it still takes: one line that counts up on a terminal, else a line for each
# tenth. The estimate takes each file for as long as the files so far.
refract_build() {
  local log="$1" start="$SECONDS" line done total left tenth=0
  shift
  "$@" 2>&1 | tee "$log" | while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    ((done > 0)) || continue # Ninja looks for new files: [0/2]
    left=$(((SECONDS - start) * (total - done) / done))
    if [[ -t 2 ]]; then
      printf '\r%s: %d of %d files built, about %d min %02d s left ' \
        "$(basename "$0")" "$done" "$total" $((left / 60)) $((left % 60)) >&2
      ((done == total)) && echo >&2
    elif ((done * 10 / total > tenth)); then
      tenth=$((done * 10 / total))
      refract_say "$done of $total files built after $((SECONDS - start)) s," \
        "about $left s left"
    fi
  done
  return "${PIPESTATUS[0]}"
}

# refract_need_disk FOLDER GIB WHAT: stops unless the disk has room.
refract_need_disk() {
  local free_kib
  free_kib="$(df --output=avail -k "$1" | tail -n 1)"
  if ((free_kib < $2 * 1024 * 1024)); then
    refract_die "$3 needs $2 GiB of disk under $1," \
      "which has $((free_kib / 1024 / 1024)) GiB free"
  fi
}

# Processors that this process may use. nproc alone would print OMP_NUM_THREADS,
# which the scripts set to 1 for LibTorch.
refract_cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Number of compile jobs: one per core, but at most one per 1.5 GB of available
# memory, the most that a file with gRPC and Protobuf needs.
refract_build_jobs() {
  local cores memory_kib jobs
  cores="$(refract_cores)"
  memory_kib="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)"
  jobs=$((${memory_kib:-0} / 1500000))
  ((jobs < 1)) && jobs=1
  ((jobs > cores)) && jobs="$cores"
  echo "$jobs"
}

# ccache settings with which clones in different folders share compiled objects.
refract_use_ccache() {
  export CCACHE_BASEDIR="$REFRACT_ROOT" CCACHE_NOHASHDIR=1
  export CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-5G}"
}

# _refract_apt ARGUMENT…: apt-get as root.
_refract_apt() {
  local sudo=()
  if [[ "$(id -u)" != 0 ]]; then
    sudo=(sudo)
    # Without a terminal sudo could only hang or fail at a password.
    [[ -t 0 ]] || sudo+=(-n)
  fi
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

# _refract_with_lists LOG COMMAND…: runs COMMAND with its output in LOG. If it fails,
# the package lists may be absent or too old: fetches them and runs COMMAND again.
_refract_with_lists() {
  local log="$1"
  shift
  "$@" >"$log" 2>&1 ||
    { _refract_apt update >>"$log" 2>&1 && "$@" >>"$log" 2>&1; }
}

# refract_install_packages [PACKAGE…]: installs the missing packages among
# REFRACT_PACKAGES, the arguments and, if python3 needs it, python3-venv.
refract_install_packages() {
  command -v dpkg-query >/dev/null ||
    refract_die "needs Debian 12 or a relative of it (no dpkg here);" \
      "docs/architecture.md lists the libraries to install by hand"
  local wanted=("${REFRACT_PACKAGES[@]}" "$@") missing=() package
  # Another python3 first on PATH (pyenv, conda) brings its own venv.
  python3 -c 'import venv, ensurepip' 2>/dev/null ||
    wanted+=(python3 python3-venv)
  for package in "${wanted[@]}"; do
    [[ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" == \
      *" installed" ]] || missing+=("$package")
  done
  ((${#missing[@]} == 0)) && return

  if [[ "$(id -u)" != 0 ]] && ! command -v sudo >/dev/null; then
    refract_die "missing packages: ${missing[*]};" \
      "installing them needs root or sudo"
  fi
  refract_say "installing ${missing[*]}"
  local log
  log="$(mktemp)"
  _refract_with_lists "$log" _refract_apt install -y --no-install-recommends \
    "${missing[@]}" ||
    refract_die "apt-get could not install ${missing[*]}:" \
      "$(_refract_reason "$log")"
  rm -f "$log"
}

# refract_install_rdma_vm: installs the packages of tests/rdma_vm. If that
# fails, the tests are skipped with the reason, so this prints the reason and
# continues.
refract_install_rdma_vm() {
  if ! { (refract_install_packages "${REFRACT_RDMA_VM_PACKAGES[@]}") &&
    _refract_fetch_guest_kernel; }; then
    refract_say "tests on soft-RoCE will be skipped"
  fi
}

# refract_install_browser: installs the browser that draws pages in tests, or
# prints that these tests will be skipped.
refract_install_browser() {
  (refract_install_packages "${REFRACT_PAGE_PACKAGES[@]}") ||
    refract_say "tests of pages in a browser will be skipped"
}

# refract_fetch_promtool: puts promtool into .venv, or prints that metrics will not be
# checked by it. The package is fetched and unpacked, not installed: installing it
# would start a Prometheus server.
refract_fetch_promtool() {
  command -v promtool >/dev/null || [[ -x $REFRACT_VENV/bin/promtool ]] && return
  local folder log
  folder="$(mktemp -d)" && log="$(mktemp)" || return
  refract_say "fetching prometheus for promtool (19 MB)"
  if _refract_with_lists "$log" _refract_download_promtool "$folder"; then
    mv "$folder/usr/bin/promtool" "$REFRACT_VENV/bin/promtool"
  else
    refract_say "metrics will not be checked by promtool: $(_refract_reason "$log")"
  fi
  rm -rf "$folder" "$log"
}

_refract_download_promtool() {
  (cd "$1" && apt-get -qq download prometheus) &&
    dpkg-deb --fsys-tarfile "$1"/prometheus_*.deb |
    tar -x -C "$1" ./usr/bin/promtool
}

# A kernel for the guest. Only fetched, not installed: installing would change
# the kernel that this machine boots.
_refract_fetch_guest_kernel() {
  local image="$REFRACT_ROOT/tests/rdma_vm/guest_image.py" cache folder log
  python3 "$image" kernel >/dev/null 2>&1 && return
  cache="$(python3 "$image" cache)" && mkdir -p "$cache" || return
  # Into a folder of its own: two runs must not write one file.
  folder="$(mktemp -d "$cache/fetch.XXXXXX")" && log="$(mktemp)" || return
  refract_say "fetching a kernel for the guest of tests/rdma_vm (70 MB)"
  local fetched=0
  if _refract_with_lists "$log" _refract_download_kernel "$folder"; then
    mv "$folder"/*.deb "$cache/"
  else
    refract_say "no kernel package for the guest: $(_refract_reason "$log")"
    fetched=1
  fi
  rm -rf "$folder" "$log"
  return "$fetched"
}

_refract_download_kernel() {
  local package
  # The metapackage depends on the newest kernel.
  package="$(apt-cache depends linux-image-amd64 2>/dev/null |
    awk '$1 == "Depends:" && $2 ~ /^linux-image-/ {print $2; exit}')"
  if [[ -z $package ]]; then
    echo "E: the package lists have no linux-image-amd64"
    return 1
  fi
  (cd "$1" && apt-get -qq download "$package")
}

# refract_install_venv [PIP PACKAGE…]: makes .venv with torch, numpy,
# safetensors and the arguments. A package of the wanted version is kept.
refract_install_venv() {
  local python="$REFRACT_VENV/bin/python"
  local wanted=("torch==$REFRACT_TORCH_VERSION" numpy safetensors "$@")
  if ! "$python" -c '' 2>/dev/null; then
    refract_need_disk "$REFRACT_ROOT" "$REFRACT_VENV_GIB" \
      "the Python environment"
    python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' ||
      refract_die "torch $REFRACT_TORCH_VERSION needs Python 3.10 to 3.14;" \
        "python3 is $(python3 --version 2>&1)"
    python3 -m venv --clear "$REFRACT_VENV" >/dev/null ||
      refract_die "python3 -m venv $REFRACT_VENV failed"
  fi
  if ! _refract_venv_has "${wanted[@]}"; then
    refract_need_disk "$REFRACT_ROOT" "$REFRACT_VENV_GIB" \
      "the Python environment"
    refract_say "installing ${wanted[*]} into .venv (about 3 GiB to fetch)"
    local log
    log="$(mktemp)"
    "$python" -m pip install --quiet --no-cache-dir \
      --disable-pip-version-check --no-input "${wanted[@]}" >"$log" 2>&1 ||
      refract_die "pip could not install ${wanted[*]}: $(_refract_reason "$log")"
    rm -f "$log"
  fi
  _refract_venv_has "${wanted[@]}" ||
    refract_die ".venv is damaged: remove $REFRACT_VENV and run again"
}

# _refract_install_for_tests WHAT PIP-OPTION… -- PACKAGE==VERSION…: into .venv. If the
# installation fails, the tests are skipped with the reason, so this prints WHAT will
# be skipped and the reason, and continues.
_refract_install_for_tests() {
  local what="$1" options=() log
  shift
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  _refract_venv_has "$@" && return
  refract_say "installing $* into .venv"
  log="$(mktemp)"
  "$REFRACT_VENV/bin/python" -m pip install --quiet --no-cache-dir \
    --disable-pip-version-check --no-input "${options[@]}" "$@" >"$log" 2>&1 ||
    refract_say "$what will be skipped: $(_refract_reason "$log")"
  rm -f "$log"
}

# The models of tests/e2e/models/torchrec_test.py, without their many dependencies,
# which the test does not need.
refract_install_torchrec() {
  _refract_install_for_tests "tests of TorchRec" --no-deps -- \
    torchrec==1.6.1 fbgemm-gpu-cpu==1.6.0 tensordict==0.15.3 \
    pyre-extensions==0.0.32 typing-inspect==0.9.0 mypy-extensions==1.1.0 \
    pyvers==0.2.3 cloudpickle==3.1.2 tqdm==4.70.1
}

# Reads the histogram logs of `refract bench serving` in tests. Without its
# dependencies, which reading does not need and which do not fit torch's.
refract_install_hdrhistogram() {
  _refract_install_for_tests "the test of histogram logs" --no-deps -- hdrhistogram==0.10.8
}

# JSON schemas of Kubernetes for tests/placement/manifests/schema_test.py.
refract_install_schemas() {
  _refract_install_for_tests "the test of manifests" -- kubernetes-validate==1.37.0
}

# Reads and writes parquet files in tests/scripts/delta_sources_test.py.
refract_install_pyarrow() {
  _refract_install_for_tests "the test of parquet deltas" --no-deps -- pyarrow==26.0.1
}

# Sends deltas to Kafka, and is the broker, in tests/e2e/serving/delta_topic_test.py.
refract_install_kafka() {
  _refract_install_for_tests "the test of deltas from Kafka" --no-deps -- confluent-kafka==2.16.1
}

# The file check detects an interrupted installation.
_refract_venv_has() {
  "$REFRACT_VENV/bin/python" - "$@" <<'PYTHON'
import importlib.metadata as metadata
import sys

for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    try:
        found = metadata.distribution(name.partition("[")[0])
    except metadata.PackageNotFoundError:
        sys.exit(1)
    # Wheels of PyTorch's own index add the platform: 2.11.0+cpu.
    if version and found.version.partition("+")[0] != version:
        sys.exit(1)
    if name == "torch" and not found.locate_file(
        "torch/lib/libtorch_cpu.so"
    ).exists():
        sys.exit(1)
PYTHON
}

# The most informative line of a log: its last error, else its last line.
_refract_reason() {
  { grep -E '^(E:|ERROR|sudo:)' "$1" || tail -n 1 "$1"; } | tail -n 1
}
