#!/usr/bin/env bash
# Makes the images of deploy/containers from the Debian package, and has them serve.
#
#   scripts/check_containers.sh [FOLDER]
#
#   FOLDER          of the build (default: build/release); it must be built
#   PODMAN=COMMAND  podman with options, such as "podman --runtime runc"
#
# Needs root, podman, mmdebstrap and the Debian archive, no registry: the base image is
# a new Debian 12. A model is imported and split by the image of the tools and served
# by the images of both nodes, with the options of docs/how-to/packages.md; the scores
# are compared with PyTorch's. Ends with the largest difference. Exit status 0, 1 and a
# line, or 77 and a line where podman is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="$(realpath "${1:-build/release}")"
fail() { echo "check_containers.sh: $*" >&2; exit 1; }
read -ra podman <<<"${PODMAN:-podman}"
command -v "${podman[0]}" >/dev/null || { echo "skipped: ${podman[0]} is missing"; exit 77; }
[[ $EUID == 0 ]] || fail "needs root, to make a system"
for tool in mmdebstrap cpack dpkg-shlibdeps; do
  command -v "$tool" >/dev/null || fail "$tool is missing (apt-get install mmdebstrap cmake dpkg-dev)"
done

work="$(mktemp -d)"
base=localhost/refract-check-base
containers=()
clean_up() {
  ((${#containers[@]})) && "${podman[@]}" rm --force --time 1 "${containers[@]}" >/dev/null 2>&1
  "${podman[@]}" rmi --force refract-check-{cpu-node,gpu-node,tools} "$base" >/dev/null 2>&1
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT

echo "== package and base image"
rm -rf build/packages
cpack --config "$build/CPackConfig.cmake" -B build/packages >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; fail "cpack failed"; }
mmdebstrap --quiet --variant=apt bookworm "$work/base.tar" >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; fail "mmdebstrap failed"; }
"${podman[@]}" import "$work/base.tar" "$base" >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; fail "podman import failed"; }
rm "$work/base.tar"

echo "== images"
for target in tools gpu-node cpu-node; do
  # Without a container of its own, which not every machine can make in a container.
  "${podman[@]}" build --isolation=chroot --network=host --build-arg "BASE=$base" \
    --target "$target" -t "refract-check-$target" \
    -f deploy/containers/Containerfile build/packages >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; fail "podman build --target $target failed"; }
done

echo "== import, split, serve"
models="$work/models"
mkdir -m 777 "$models"
.venv/bin/python -m models.zoo.export --model dlrm --preset tiny --out "$work/dlrm" >/dev/null
chmod -R a+rX "$work"
# The machine's network: the check needs no bridge. Limits that any caller may set:
# podman's own may be above the caller's.
options=(
  --network=host --read-only --cap-drop=all --security-opt=no-new-privileges
  --ulimit nofile=4096:4096 --ulimit nproc=4096:4096
)
tools=("${podman[@]}" run --rm "${options[@]}" -v "$work/dlrm:/dlrm:ro" -v "$models:/models" refract-check-tools)
"${tools[@]}" import /dlrm/dlrm.pt2 --repo /models --name dlrm --tables /dlrm/tables \
  --sample /dlrm/sample.safetensors
"${tools[@]}" partition /models/dlrm --method heuristic --write >/dev/null
# node IMAGE OPTION…: starts a node; its id is then the last of `containers`.
node() {
  containers+=("$("${podman[@]}" run --detach "${options[@]}" -v "$models:/models:ro" "$@" 2>>"$work/log")") ||
    { tail "$work/log" >&2; fail "$1 did not start"; }
}
# port ID TEXT: waits for "TEXT ADDRESS:PORT" in a node's log.
port() {
  local found
  for ((i = 0; i < 300; ++i)); do
    found="$("${podman[@]}" logs "$1" 2>&1 |
      sed -n "s/^.*$2 [0-9.]*:\([0-9]*\)$/\1/p" | tail -n 1)"
    [[ -n $found ]] && { echo "$found"; return; }
    sleep 0.2
  done
  fail "$("${podman[@]}" logs "$1" 2>&1 | tail -n 3)"
}
node refract-check-gpu-node --port 0 --metrics-port off
hn="$(port "${containers[-1]}" "listening on")"
node refract-check-cpu-node --gpu-nodes "127.0.0.1:$hn" --grpc-port 0 --http-port 0 --metrics-port off
http="$(port "${containers[-1]}" "HTTP on")"
for ((i = 0; i < 300; ++i)); do
  curl -sf "http://127.0.0.1:$http/v2/health/ready" >/dev/null && break
  sleep 0.2
done
"$build/bin/refract" run "$models/dlrm" --mode reference \
  --inputs "$work/dlrm/sample.safetensors" --outputs "$work/expected.safetensors" >/dev/null
.venv/bin/python -m scripts.lib.check_scores "$http" dlrm "$work/dlrm/sample.safetensors" \
  "$work/expected.safetensors" ||
  { for id in "${containers[@]}"; do "${podman[@]}" logs "$id" 2>&1 | tail -n 5 >&2; done; fail "wrong scores"; }

echo "== stop"
for id in "${containers[@]}"; do
  "${podman[@]}" stop --time 60 "$id" >/dev/null 2>&1
  status="$("${podman[@]}" inspect --format '{{.State.ExitCode}}' "$id" 2>/dev/null)"
  [[ $status == 0 ]] || fail "a node ended with status $status"
done
echo "the images build, serve and stop"
