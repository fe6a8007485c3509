image /srv/images/web.raw 64M
daemon
haversack disk attach web /srv/images/web.raw >/dev/null
use web
