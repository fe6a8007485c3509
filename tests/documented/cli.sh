# A reference, not a tutorial: vm1 is set up for each command as that command requires. Its origin is an RBD image, or a
# file where the disk moves.
. "$WORKSPACE/tests/documented/hosts.sh"
for device in a b c; do truncate -s 3G /srv/nvme-$device && ln -s /srv/nvme-$device /dev/disk/by-id/nvme-$device; done
for address in 10.0.0.2 10.0.0.3; do ip address add $address/32 dev lo; done
echo "10.0.0.3 beta" >>/etc/hosts
rbd create vms/vm1 --size 20G
truncate -s 20G /srv/images/vm1.raw

# vm1 is attached again.
fresh() {
    gone
    haversack disk attach vm1 "$@" --from none --vhost-user /run/haversack/vm1.sock --clean-idle 1h --clean-age 1h >/dev/null
}
gone() {
    haversack disk detach vm1 >/dev/null 2>&1 || true
    haversack disk forget vm1 >/dev/null 2>&1 || true
}
policy_of_seconds() { haversack policy set rwss window=1s >/dev/null; }
measured() { use vm1 && "$@"; }

before() {
    case $1 in
    "haversack disk attach"*)
        sed -i 's|"/var/lib/haversack/cache.img"|"/dev/disk/by-id/nvme-a"|' /etc/haversack/haversackd.toml
        directory
        daemon "$(moves alpha 10.0.0.2 beta 10.0.0.3)" "${tables[@]}"
        host beta 10.0.0.3 alpha 10.0.0.2
        until_done eval 'haversack host list | grep connected'
        ;;
    "haversack disk lost"*) fresh rbd:vms/vm1 ;;
    "haversack disk resize"*) fresh rbd:vms/vm1 --size 10GiB ;;
    "haversack disk forget"*) haversack disk detach vm1 >/dev/null ;;
    "haversack disk set vm1 --priority"*)
        fresh /srv/images/vm1.raw
        on beta disk attach vm1 /srv/images/vm1.raw --vhost-user /run/beta/vm1.sock --clean-idle 1h --clean-age 1h >/dev/null
        ;;
    *"--qmp /run/vm1-qmp.sock"*)
        vm /run/haversack/vm1.sock -qmp unix:/run/vm1-qmp.sock,server=on,wait=off
        vm /run/beta/vm1.sock -qmp tcp:10.0.0.3:4445,server=on,wait=off -incoming defer
        until_done eval 'haversack --json disk show vm1 | jq -e ".clients > 0"'
        until_done eval '(: </dev/tcp/10.0.0.3/4445)'
        sleep 1
        ;;
    "haversack disk own"*)
        kill "${vms[@]}" && wait "${vms[@]}"
        dies_behind beta haversack vm1
        ANSWER=vm1
        ;;
    "haversack host forget"*)
        until_done eval 'haversack --json cluster status | jq -e ".hosts[] | select(.name == \"beta\" and .state == \"away\")"'
        ANSWER=beta
        ;;
    "haversack disk event"*)
        # Reads of the lost ranges fail until these are written.
        write_on haversack vm1 '0 32M' && policy_of_seconds
        ;;
    "haversack disk curve"*) haversack disk event vm1 resumed >/dev/null && until_done measured haversack disk curve vm1 ;;
    "haversack policy accuracy"*) policy_of_seconds && until_done measured eval "$1" ;;
    "haversack trace record"*) UNTIL="sleep 1" ;;
    "haversack trace window"*) trace vm1.trace 20k 10 ;;
    "haversack stop"*) fresh /srv/images/vm1.raw && write_on haversack vm1 '0 1M' ;;
    "haversack pool check"*) wait "$daemon" ;;
    "haversack flush-offline"*--dry-run* | "haversack flush-offline --list"*) ;;
    "haversack flush-offline"*) ANSWER=vm1 ;;
    "haversack pool wipe"*) ANSWER=/dev/disk/by-id/nvme-b ;;
    esac
}
