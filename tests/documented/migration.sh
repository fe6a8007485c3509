# vm1 is on alpha, and beta knows it.
. "$WORKSPACE/tests/documented/hosts.sh"
for address in 10.0.0.1 10.0.0.2; do ip address add $address/32 dev lo; done
image /srv/images/vm1.raw 64M
host alpha 10.0.0.1 beta 10.0.0.2
host beta 10.0.0.2 alpha 10.0.0.1
until_done eval 'on alpha host list | grep connected'
# What is written stays in the cache.
for host in alpha beta; do
    on $host disk attach vm1 /srv/images/vm1.raw --clean-idle 1h --clean-age 1h >/dev/null
done
export HAVERSACK_SOCKET=/run/alpha/control.sock

before() {
    case $1 in
    "haversack migrate vm1 --to"*) write_on alpha vm1 '0 16M' ;;
    *"own vm1 --dry-run")
        on alpha migrate abort vm1
        dies_behind alpha beta vm1
        export HAVERSACK_SOCKET=/run/beta/control.sock
        ;;
    esac
}
