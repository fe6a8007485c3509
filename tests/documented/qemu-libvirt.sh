image /srv/images/vm1.raw 4G
image /srv/images/data.raw 1G
useradd --system libvirt-qemu
mkdir -p /usr/share/doc/haversack/examples
cp -r "$WORKSPACE"/packaging/{hooks,libvirt-hook.toml} /usr/share/doc/haversack/examples
daemon
sed -n '/^# cat data.xml/,/^# virsh/p' "$WORKSPACE/docs/qemu-libvirt.md" | grep -v '^#' >data.xml

is_connected() { haversack --json disk show vm1 | jq -e '.clients > 0'; }
is_left() { haversack --json disk show vm1 | jq -e '.clients == 0'; }

before() {
    case $1 in
    qemu-system*) until_done is_left && UNTIL=is_connected ;;
    esac
}
