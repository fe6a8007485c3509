# The scenarios of the page as files, which come before those built in: of half the length and with fewer VMs.
for name in step diurnal failures maintenance; do
    sed -E 's/^vms-per-host = .*/vms-per-host = 2/; s/^hosts = [0-9]{3,}/hosts = 50/; s/^length = "48h"/length = "24h"/' \
        "$WORKSPACE/mixes/clusters/$name.toml" >$name
done
sed 's/^length = .*/length = "4h"/' step >my-cluster.toml

before() {
    case $1 in
    *"--hosts 10000"*) cp my-cluster.toml step ;;
    esac
}
