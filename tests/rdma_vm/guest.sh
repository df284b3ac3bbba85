#!/bin/bash
# The guest after switch_root, as process 1: sets up what the job's settings
# ask for, runs its programs one after another, each with fresh RDMA devices,
# and ends the machine. Results are files in the job folder (see README.md).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8
job=/run/refract
exec </dev/null

end() {
  dmesg >"$job/dmesg" 2>/dev/null
  echo b >/proc/sysrq-trigger
  sleep 60
}

# Every end of this script ends the machine, or the kernel would panic.
trap end EXIT

fail() {
  echo "refract-vm failed: $*"
  exit 1
}

# The settings of the job: layout, mtu, shares (folders).
layout='' mtu='' shares=()
# shellcheck source=/dev/null
source "$job/settings.sh" || fail "no settings"

uptime_s() {
  local up rest
  read -r up rest </proc/uptime
  echo "$up"
}

# wait_for_address DEVICE: until the port is active and has its IPv4 GID.
wait_for_address() {
  local port="/sys/class/infiniband/$1/ports/1" state tries
  for ((tries = 0; tries < 200; ++tries)); do
    state="$(<"$port/state")"
    [[ $state == *ACTIVE* ]] && grep -qs ':ffff:' "$port"/gids/* && return
    sleep 0.05
  done
  return 1
}

# add_device INDEX: the rxe device of interface refract<INDEX>.
add_device() {
  rdma link add "rxe$1" type rxe netdev "refract$1" &&
    wait_for_address "rxe$1"
}

set_up_layout() {
  # ip takes the MTU only before the type; after it, it is ignored in silence.
  case "$layout" in
    none) ;;
    dummy)
      ip link add refract0 mtu "$mtu" type dummy &&
        ip address add 192.0.2.1/24 dev refract0 &&
        ip link set refract0 up && add_device 0
      ;;
    veth)
      ip link add refract0 mtu "$mtu" type veth \
        peer name refract1 mtu "$mtu" || return
      # Both ends are ours: without these the kernel drops what arrives from an
      # address of its own.
      local name
      for name in all refract0 refract1; do
        echo 1 >"/proc/sys/net/ipv4/conf/$name/accept_local"
        echo 0 >"/proc/sys/net/ipv4/conf/$name/rp_filter"
      done
      ip address add 192.0.2.1/24 dev refract0 &&
        ip address add 192.0.2.2/24 dev refract1 &&
        ip link set refract0 up && ip link set refract1 up &&
        add_device 0 && add_device 1
      ;;
    *) return 1 ;;
  esac
}

tear_down_layout() {
  # Everything but process 1: a device cannot go while a process has it open.
  kill -KILL -1 2>/dev/null
  local device
  for device in /sys/class/infiniband/rxe*; do
    [[ -e $device ]] || continue
    timeout 20 rdma link delete "${device##*/}" || return
  done
  if [[ -e /sys/class/net/refract0 ]]; then
    ip link delete refract0
  fi
}

# The hardware counters of every device: {"rxe0": {"sent_pkts": 1, …}, …}
counters() {
  local device file value separator outer=
  echo "{"
  for device in /sys/class/infiniband/*; do
    [[ -e $device ]] || continue
    printf '%s"%s": {' "$outer" "${device##*/}"
    outer=$',\n'
    separator=
    for file in "$device"/ports/1/hw_counters/*; do
      [[ ${file##*/} == lifespan ]] && continue
      read -r value <"$file" || continue
      printf '%s"%s": %s' "$separator" "${file##*/}" "$value"
      separator=", "
    done
    printf '}'
  done
  printf '\n}\n'
}

# run_program FOLDER: its command.sh under its time limit.
run_program() {
  local folder="$1" limit_s begin code
  limit_s="$(<"$folder/limit_s")"
  if ! set_up_layout; then
    fail "layout $layout"
  fi
  # The kernel caches counters for 10 ms.
  counters >"$folder/counters_before.json"
  begin="$(uptime_s)"
  echo "$begin" >"$folder/begin"
  timeout --kill-after=5 "$limit_s" bash "$folder/command.sh" \
    >"$folder/stdout" 2>"$folder/stderr"
  code=$?
  uptime_s >"$folder/end"
  sleep 0.02
  counters >"$folder/counters_after.json"
  tear_down_layout || fail "layout $layout did not go away"
  # Last, and whole: the host takes it as the end of this program.
  echo "$code" >"$folder/exit_code.part"
  mv "$folder/exit_code.part" "$folder/exit_code"
}

mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
for index in "${!shares[@]}"; do
  mkdir -p "${shares[$index]}"
  mount -t 9p -o rw,trans=virtio,version=9p2000.L,msize=512000,cache=none \
    "share$index" "${shares[$index]}" || fail "share ${shares[$index]}"
done
hostname refract-vm
ip link set lo up || fail "no loopback interface"
# Addresses are usable, and GIDs final, as soon as an interface is up.
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
ulimit -l unlimited
ulimit -c 0
uptime_s >"$job/ready"

for folder in "$job"/programs/*; do
  run_program "$folder"
done
