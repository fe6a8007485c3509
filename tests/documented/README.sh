small_mixes
# blktrace's own format: an event for each request that is queued (action 1 of class 0x10; reads are 1 more, writes 2).
records '<IIQQIIIIIHH' '0x65617407, n, n * 10**7, n * n % 4000 * 8, 4096, 0x110001 if n % 3 else 0x120001, 1, 0x800010, 0, 0, 0' \
    >vm1.blktrace.0
echo "127.0.0.1 storage.example" >>/etc/hosts

before() {
    case $1 in
    "haversack pool create"*) sed -i '/^\[sandbox\]/,/^$/d' /etc/haversack/haversackd.toml ;;
    "haversack disk attach"*)
        image /srv/images/vm1.raw 64M
        nbdkit --exportname vm1 file /srv/images/vm1.raw
        restart
        ;;
    esac
}
