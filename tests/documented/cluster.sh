# Two hosts in a cluster, with a disk each. Their demand is small, so vm2 has room on alpha.
. "$WORKSPACE/tests/documented/hosts.sh"
for address in 10.0.0.1 10.0.0.2; do ip address add $address/32 dev lo; done
directory
host alpha 10.0.0.1 beta 10.0.0.2
host beta 10.0.0.2 alpha 10.0.0.1
until_done eval 'on alpha host list | grep connected'
image /srv/images/vm1.raw 64M
image /srv/images/vm2.raw 64M
on alpha disk attach vm1 /srv/images/vm1.raw >/dev/null
on beta disk attach vm2 /srv/images/vm2.raw >/dev/null
export HAVERSACK_SOCKET=/run/alpha/control.sock
until_done eval 'haversack cluster status --disks | grep vm2'

before() {
    case $1 in
    "haversack cluster plan") until_done eval 'haversack cluster plan | grep "vm2: beta -> alpha"' ;;
    esac
}
