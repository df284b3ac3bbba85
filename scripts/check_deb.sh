#!/usr/bin/env bash
# Makes the Debian package, installs it in a clean Debian 12, and has it serve.
#
#   scripts/check_deb.sh [FOLDER]
#
#   FOLDER  of the build (default: build/release); it must be built
#
# Needs root, mmdebstrap and the Debian archive. In the new system a model is
# imported, split and served by both nodes as user refract; the scores are compared
# with PyTorch's. Ends with the largest difference. Exit status 0, or 1 and a line.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="$(realpath "${1:-build/release}")"
fail() { echo "check_deb.sh: $*" >&2; exit 1; }
[[ $EUID == 0 ]] || fail "needs root, to make a system and change into it"
for tool in mmdebstrap cpack dpkg-shlibdeps; do
  command -v "$tool" >/dev/null || fail "$tool is missing (apt-get install mmdebstrap cmake dpkg-dev)"
done

work="$(mktemp -d)"
system="$work/system"
nodes=()
clean_up() {
  # The chroot's processes end first: they keep its mounts busy.
  ((${#nodes[@]})) && kill "${nodes[@]}" 2>/dev/null && wait "${nodes[@]}" 2>/dev/null || true
  for mount in dev/shm dev/null dev/urandom proc; do
    umount "$system/$mount" 2>/dev/null || true
  done
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT

echo "== package"
rm -rf build/packages
cpack --config "$build/CPackConfig.cmake" -B build/packages >"$work/cpack.log" 2>&1 ||
  { tail -n 20 "$work/cpack.log" >&2; fail "cpack failed"; }
package="$(ls "$PWD"/build/packages/refract_*.deb)"
dpkg-deb --info "$package" | sed -n 's/^ \(Version\|Installed-Size\|Depends\)/ \1/p' | cut -c1-200
if readelf -d "$build"/bin/refract-cpu-node >/dev/null; then
  dpkg-deb --fsys-tarfile "$package" | tar -xO ./usr/bin/refract-cpu-node >"$work/cpu-node"
  readelf -d "$work/cpu-node" | grep -qF '[$ORIGIN/../lib/refract]' ||
    fail "the package's programs look for libraries outside the package"
fi

echo "== a clean Debian 12"
mmdebstrap --quiet --variant=apt bookworm "$system" >"$work/debootstrap.log" 2>&1 ||
  { tail -n 20 "$work/debootstrap.log" >&2; fail "mmdebstrap failed"; }
mkdir -p "$system/proc" "$system/dev/shm"
mount -t proc proc "$system/proc"
mount -t tmpfs -o mode=1777 tmpfs "$system/dev/shm"
for device in null urandom; do
  touch "$system/dev/$device"
  mount --bind "/dev/$device" "$system/dev/$device"
done
cp "$package" "$system/tmp/"
chroot "$system" sh -c \
  'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends /tmp/refract_*.deb' \
  >"$work/apt.log" 2>&1 || { tail -n 20 "$work/apt.log" >&2; fail "apt-get install failed"; }
if command -v systemd-analyze >/dev/null; then
  # The new system has no systemd, so that the targets are missing.
  complaints="$(systemd-analyze verify --root="$system" --man=no refract-cpu-node.service \
    refract-gpu-node.service 2>&1 | grep -v 'sysinit.target not found' || true)"
  [[ -z $complaints ]] || fail "systemd-analyze verify: $complaints"
  systemd-analyze security --offline=true --root="$system" refract-cpu-node.service |
    tail -n 1
fi

echo "== import, split, serve"
.venv/bin/python -m models.zoo.export --model dlrm --preset tiny --out "$work/dlrm" >/dev/null
cp -r "$work/dlrm" "$system/tmp/dlrm"
as_user=(chroot --userspec=refract:refract "$system")
# port LOG TEXT: waits for "TEXT 127.0.0.1:PORT" in a node's log.
port() {
  local found
  for ((i = 0; i < 300; ++i)); do
    found="$(sed -n "s/^.*$2 127\.0\.0\.1:\([0-9]*\)$/\1/p" "$1" 2>/dev/null || true)"
    [[ -n $found ]] && { echo "$found"; return; }
    sleep 0.2
  done
  fail "$(tail -n 3 "$1")"
}
tables=()
[[ -d $work/dlrm/tables ]] && tables=(--tables /tmp/dlrm/tables)
"${as_user[@]}" refract import /tmp/dlrm/dlrm.pt2 --repo /var/lib/refract/models --name dlrm \
  "${tables[@]}" --sample /tmp/dlrm/sample.safetensors
"${as_user[@]}" refract partition /var/lib/refract/models/dlrm --method heuristic >/dev/null
"${as_user[@]}" refract-gpu-node --model-repository /var/lib/refract/models --port 0 \
  --metrics-port off >"$work/hn.log" 2>&1 &
nodes+=($!)
hn="$(port "$work/hn.log" "listening on")"
"${as_user[@]}" refract-cpu-node --model-repository /var/lib/refract/models \
  --gpu-nodes "127.0.0.1:$hn" --grpc-port 0 --http-port 0 --metrics-port off \
  >"$work/cn.log" 2>&1 &
nodes+=($!)
http="$(port "$work/cn.log" "HTTP on")"
for ((i = 0; i < 300; ++i)); do
  curl -sf "http://127.0.0.1:$http/v2/health/ready" >/dev/null && break
  kill -0 "${nodes[@]}" 2>/dev/null || { tail "$work"/?n.log >&2; fail "a node ended"; }
  sleep 0.2
done
# PyTorch's scores, of the original file with its tables.
"$build/bin/refract" run "$system/var/lib/refract/models/dlrm" --mode reference \
  --inputs "$work/dlrm/sample.safetensors" --outputs "$work/expected.safetensors" >/dev/null
.venv/bin/python -m scripts.lib.check_scores "$http" dlrm "$work/dlrm/sample.safetensors" \
  "$work/expected.safetensors" || { tail "$work"/?n.log >&2; fail "wrong scores"; }

echo "== stop and remove"
kill "${nodes[@]}" || { tail -n 5 "$work"/?n.log >&2; fail "a node has ended"; }
for node in "${nodes[@]}"; do wait "$node" || fail "a node did not end cleanly"; done
nodes=()
chroot "$system" apt-get -qq remove -y refract >"$work/apt.log" 2>&1 || fail "apt-get remove failed"
[[ ! -e $system/usr/bin/refract ]] || fail "removal left programs"
[[ -d $system/var/lib/refract/models/dlrm ]] || fail "removal took the models"
echo "the package installs, serves and goes"
