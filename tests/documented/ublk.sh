image /srv/images/vm1.raw 64M
daemon
