# Two hosts in a cluster, with a disk each. Their demand is small, so vm2 has room on alpha. The page makes their certificates, and starts
# etcd on alpha.
. "$WORKSPACE/tests/documented/hosts.sh"
for address in 10.0.0.1 10.0.0.2; do ip address add $address/32 dev lo; done
tables=('[cluster]' 'endpoints = ["https://10.0.0.1:2379"]' 'report_every = "1s"')
image /srv/images/vm1.raw 64M
image /srv/images/vm2.raw 64M
export HAVERSACK_SOCKET=/run/alpha/control.sock

# The files of a host, as a table of its configuration names them.
files() {
    printf '%s\n' "certificate = \"/etc/haversack/$1.pem\"" "key = \"/etc/haversack/$1-key.pem\"" 'authority = "/etc/haversack/ca.pem"'
}

# The tables of a host's configuration as the page shows them; those of the cluster are at their end.
moves() {
    printf '%s\n' '[migration]' "name = \"$1\"" "listen = [\"$2:10810\"]"
    files $1
    printf '%s\n' '[[host]]' "name = \"$3\"" "address = \"$4:10810\""
}

both() {
    cluster=("${tables[@]}")
    mapfile -t tables < <(printf '%s\n' "${cluster[@]}" && files alpha)
    host alpha 10.0.0.1 beta 10.0.0.2
    mapfile -t tables < <(printf '%s\n' "${cluster[@]}" && files beta)
    host beta 10.0.0.2 alpha 10.0.0.1
    until_done eval 'on alpha host list | grep connected'
    on alpha disk attach vm1 /srv/images/vm1.raw >/dev/null
    on beta disk attach vm2 /srv/images/vm2.raw >/dev/null
    until_done eval 'haversack cluster status --disks | grep vm2'
}

before() {
    case $1 in
    scp*beta*) cp ./*.pem /etc/haversack ;;
    "systemctl restart haversackd") both ;;
    "haversack cluster plan") until_done eval 'haversack cluster plan | grep "vm2: beta -> alpha"' ;;
    esac
}
