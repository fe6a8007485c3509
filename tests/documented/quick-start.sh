image /srv/images/vm1.raw 4G
# The unit's sandbox needs a kernel with Landlock.
sed -i '/^\[sandbox\]/,/^$/d' /etc/haversack/haversackd.toml

is_connected() { haversack --json disk show vm1 | jq -e '.clients > 0'; }
is_left() { haversack --json disk show vm1 | jq -e '.clients == 0'; }

before() {
    case $1 in
    "systemctl restart"*) restart ;;
    qemu-system*) until_done is_left && UNTIL=is_connected ;;
    "haversack disk detach"*) until_done is_left ;;
    esac
}
