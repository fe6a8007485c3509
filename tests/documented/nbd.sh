image /srv/images/disk.raw 64M
daemon
haversack disk attach disk /srv/images/disk.raw >/dev/null
use disk
