# The mixes of the page, with fewer requests: what is left begins before the VM moves, and ends after it.
mkdir mixes pictures docs
for mix in cloudcache-web cloudcache-moodle firepanif; do
    sed -E 's/rate = ([0-9]+)0\.0/rate = \1.0/; s/requests = ([0-9]+)0\b/requests = \1/g; s/blocks = ([0-9]+)0\b/blocks = \1/g; s/^at = "7s"/at = "700ms"/; s/^window = "1562ms"/window = "100ms"/' \
        "$WORKSPACE/mixes/$mix.toml" >mixes/$mix.toml
done
trace oltp.csv.zst 10k 8
trace files.csv.zst 10k 8

before() {
    case $1 in
    "for name in"*) for name in hits iops source; do echo "<svg/>" >pictures/$name.svg; done ;;
    esac
}
