#!/bin/busybox sh
# shellcheck shell=dash
#
# First process of the guest: loads the modules, mounts the host's root with a
# throw-away layer above it, and hands over to guest.sh of the job folder.
#
# Kernel command line: refract.probe only says that the guest boots.
bb=/bin/busybox

# The marker that run_in_vm looks for in the console. Everything after it on
# the line is the reason.
fail() {
  echo "refract-vm failed: $*"
  $bb sleep 1
  $bb reboot -f
}

$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
if $bb grep -qw refract.probe /proc/cmdline; then
  echo "refract-vm boots"
  $bb sleep 1
  $bb reboot -f
fi

# /modules/order names them in the order in which they depend on each other.
while read -r module options; do
  # shellcheck disable=SC2086  # several options are several words
  $bb insmod "/modules/$module" $options || fail "insmod $module"
done </modules/order

# cache=loose: the host's files are taken to be those of the boot. Without it
# every page of every library crosses 9p again.
options=trans=virtio,version=9p2000.L,msize=512000
$bb mount -t 9p -o "ro,$options,cache=loose" host /host || fail "mount host"
$bb mount -t tmpfs -o mode=755 layer /layer
$bb mkdir /layer/upper /layer/work
$bb mount -t overlay \
  -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /newroot ||
  fail "mount overlay"
$bb mount -t tmpfs -o mode=755 run /newroot/run || fail "mount /run"
$bb mkdir /newroot/run/refract
$bb mount -t 9p -o "rw,$options,cache=none" job /newroot/run/refract ||
  fail "mount job"
for folder in proc sys dev; do
  $bb mount --move /$folder /newroot/$folder
done
exec $bb switch_root /newroot /bin/bash /run/refract/guest.sh
