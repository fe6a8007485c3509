# Two disks on RBD, and a guest agent that answers as QEMU's does, in place of a guest.
for disk in vm1 vm1-data; do rbd create vms/$disk --size 64M; done
daemon
for disk in vm1 vm1-data; do haversack disk attach $disk rbd:vms/$disk >/dev/null && use $disk; done
printf '%s\n' '#!/bin/sh' 'rbd snap create vms/vm1@both && rbd snap create vms/vm1-data@both' >/usr/local/bin/snapshot-both
chmod 755 /usr/local/bin/snapshot-both
python3 - <<'END' &
import json, socket
server = socket.socket(socket.AF_UNIX)
server.bind("/run/vm1-agent.sock")
server.listen()
while True:
    client, _ = server.accept()
    for line in client.makefile("rb"):
        asked = json.loads(line.lstrip(b"\xff"))
        is_sync = asked["execute"].startswith("guest-sync")
        answer = {"return": asked["arguments"]["id"] if is_sync else "frozen" if "status" in asked["execute"] else 1}
        client.sendall((b"\xff" if is_sync else b"") + json.dumps(answer).encode() + b"\n")
END
until_done test -S /run/vm1-agent.sock

before() {
    case $1 in
    *"cp --sparse"*)
        image vm1.img 64M
        haversack disk detach vm1 && haversack disk forget vm1 && haversack disk attach vm1 vm1.img
        ;;
    esac
}
