# More hosts, each a daemon with its own sockets and state: for pages on which disks move.

declare -A daemons
vms=()
# Lines at the end of each host's configuration.
tables=()

# The tables of a host's configuration for moves: its name and address, and those of the other host.
moves() {
    printf '%s\n' '[migration]' "name = \"$1\"" "listen = [\"$2:10810\"]" 'insecure = true' 'fence = "/usr/bin/true"' "${5:-}" \
        '[[host]]' "name = \"$3\"" "address = \"$4:10810\""
}

# Starts the directory of a cluster that consists of the hosts started from now on.
directory() {
    etcd --data-dir /var/lib/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        >>"$OUT/etcd.log" 2>&1 &
    tables=('[cluster]' 'endpoints = ["http://127.0.0.1:2379"]' 'insecure = true' 'report_every = "1s"')
}

# Starts the daemon of a host, with the same arguments.
host() {
    local name=$1
    mkdir -p /run/$name /var/lib/$name
    [ -e /var/lib/$name/pool.img ] || haversack pool create main /var/lib/$name/pool.img --size 256M >/dev/null
    {
        printf '%s\n' '[daemon]' "runtime_dir = \"/run/$name\"" "state_dir = \"/var/lib/$name\"" \
            '[[pool]]' 'name = "main"' "devices = [\"/var/lib/$name/pool.img\"]" '[nbd]' "listen = [\"unix:/run/$name/nbd.sock\"]"
        moves "$@"
        printf '%s\n' "${tables[@]}"
    } >/etc/$name.toml
    # Each has a staging area of its own in memory.
    unshare --mount sh -c "mount -t tmpfs none /dev/shm && exec haversackd --config /etc/$name.toml" >>"$OUT/$name.log" 2>&1 &
    daemons[$name]=$!
    until_done on $name status
}

# Runs a command of haversack at a host.
on() { haversack --socket /run/$1/control.sock "${@:2}"; }

# Writes to a disk at a host, as a VM that runs there.
write_on() { qemu-io -f raw -c "write $3" "nbd+unix:///$2?socket=/run/$1/nbd.sock" >/dev/null; }

# The disk is on host $1 with dirty blocks when it moves to $2, where some of it is written; $1 dies before it has sent
# all blocks.
dies_behind() {
    tc qdisc replace dev lo root tbf rate 50mbit burst 128kb latency 100ms
    write_on $1 $3 '0 32M' && write_on $2 $3 '28k 4k' && kill -9 ${daemons[$1]}
    tc qdisc del dev lo root
}

# Starts a VM without a system, on the disk's socket at a host.
vm() {
    qemu-system-x86_64 -accel tcg -cpu max -m 64M -nodefaults -display none \
        -machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size=64M,share=on \
        -chardev socket,id=disk,path=$1,reconnect-ms=500 -device vhost-user-blk-pci,chardev=disk "${@:2}" >>"$OUT/vm.log" 2>&1 &
    vms+=($!)
}
