# The base image and two made from it, a Ceph cluster, iSCSI targets, an NFS server, a device of the kernel's initiator.
image /srv/images/golden.raw 64M
image /srv/iscsi/vm1.img 64M
image /srv/iscsi/vm3.img 1G
for disk in vm1 vm2; do qemu-img create -q -f qcow2 -b /srv/images/golden.raw -F raw /srv/images/$disk.qcow2; done
image "/dev/disk/by-path/ip-10.0.0.5:3260-iscsi-iqn.2001-04.org.example:vm1-lun-1" 64M
ip address add 10.0.0.5/32 dev lo
tgtd --foreground >"$OUT/tgtd.log" 2>&1 &
until_done tgtadm --lld iscsi --op show --mode target
target() { tgtadm --lld iscsi --tid 2 "$@"; }
target --op new --mode target -T iqn.2001-04.org.example:vm1
target --op new --mode logicalunit --lun 1 -b /srv/iscsi/vm1.img
target --op bind --mode target -I ALL
daemon
haversack disk attach golden /srv/images/golden.raw --read-only >/dev/null
for disk in vm1 vm2; do haversack disk attach $disk qcow2:/srv/images/$disk.qcow2 --base golden >/dev/null; done
use_read() { qemu-io -r -f raw -c 'read 0 1M' "nbd+unix:///$1?socket=/run/haversack/nbd.sock" >/dev/null; }
use_read vm1
use_read vm2

# Nothing is left of a disk of this name.
gone() {
    ! haversack disk show "$1" >/dev/null 2>&1 || { until_done haversack disk detach "$1" && haversack disk forget "$1"; } >/dev/null
}

# Another pool's lock of vm5's image, as on another host.
lock() {
    local header
    header=rbd_header.$(rbd info --format json vms/vm5 | jq -r .id)
    rados --pool vms lock "$1" "$header" haversack "${@:2}"
}

attached=0
before() {
    case $1 in
    "haversack disk attach vm5"*)
        attached=$((attached + 1))
        gone vm5
        case $attached in
        2) lock get --lock-type exclusive --lock-cookie 6b0c/1d2f --lock-description "disk vm5 of pool main on host1" ;;
        3)
            lock break "$(lock info --format json | jq -r '.lockers[0].name')" --lock-cookie 6b0c/1d2f
            qemu-storage-daemon --blockdev driver=rbd,node-name=o,pool=vms,image=vm5 --pidfile /run/other.pid \
                --export vhost-user-blk,id=e,node-name=o,addr.type=unix,addr.path=/run/other.sock,writable=on &
            until_done test -e /run/other.pid
            ;;
        esac
        ;;
    *"--size 2GiB"*) ;;
    "haversack disk attach"*) gone "$(echo "$1" | cut -d ' ' -f 4)" ;;
    esac
}
