# The example of the page: a disk that is used, and another one; and a disk that moves here.
for disk in web backup vm1; do image /srv/images/$disk.raw 64M; done
haversack pool create demo /var/lib/haversack/demo.img --size 256M --configure >/dev/null
daemon '[policy]' 'allocator = "rwss"' 'window = "1s"' 'admission = "address(1)"' 'staging_share = 0.01'
for disk in web backup vm1; do haversack disk attach $disk /srv/images/$disk.raw >/dev/null; done

before() {
    case $1 in
    "haversack policy explain"*) use web && until_done explains ;;
    "haversack disk event"*)
        haversack disk detach vm1 && haversack disk forget vm1 && haversack disk attach vm1 /srv/images/vm1.raw
        ;;
    "haversack trace record"*) UNTIL="sleep 1" ;;
    esac
}
explains() { haversack policy explain web | grep 'Last window'; }
