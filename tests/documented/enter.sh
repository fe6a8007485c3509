#!/usr/bin/env bash
# Runs a script as on a host of its own: everything that it writes outside of PLACE is gone afterwards, and no other process sees
# it. In new mount, process, network and name namespaces already:
#
# enter.sh PLACE PROGRAMS SCRIPT
set -euo pipefail
place=$1 programs=$2 script=$3
workspace=$(cd "$(dirname "$0")/../.." && pwd)
root=$place/root
mkdir -p "$root" "$place/layer" "$place/page"

mount --make-rprivate /
# An overlay cannot be the upper layer of another one, as in a container: then it is in memory.
overlay() {
    mkdir -p "$place/layer/upper" "$place/layer/work"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$place/layer/upper,workdir=$place/layer/work" "$root"
}
overlay 2>/dev/null || { mount -t tmpfs none "$place/layer" && overlay; }

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs none "$root/run"
mount -t tmpfs -o mode=755 none "$root/dev"
for node in null zero full random urandom tty; do
    [ ! -e "/dev/$node" ] || { : >"$root/dev/$node" && mount --bind "/dev/$node" "$root/dev/$node"; }
done
mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/dev/disk/by-id" "$root/dev/disk/by-path"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs none "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
# They may be on other file systems than the root.
for directory in "$workspace" "$programs" "$place"; do
    mkdir -p "$root$directory"
    mount --bind "$directory" "$root$directory"
done
mount -o remount,bind,ro "$root$workspace"

ip link set lo up
hostname host1
mkdir -p "$root/etc/haversack" "$root/var/lib/haversack/images" "$root/srv/images" "$root/run/haversack"
cp "$workspace/packaging/default.toml" "$root/etc/haversack/haversackd.toml"
[ ! -e "$place/ceph.conf" ] || { mkdir -p "$root/etc/ceph" && cp "$place/ceph.conf" "$root/etc/ceph"; }
export PATH="$programs:$PATH:/usr/sbin:/sbin" WORKSPACE="$workspace"
exec chroot "$root" bash -c 'cd "$1" && exec bash "$2"' bash "$place/page" "$script"
