# The caller is in a group of readers alone.
groupadd monitoring
useradd --gid monitoring grafana
image /srv/images/vm1.raw 64M
daemon '[access.readers]' 'groups = ["monitoring"]'
haversack disk attach vm1 /srv/images/vm1.raw >/dev/null
haversack() { setpriv --reuid grafana --regid monitoring --clear-groups -- env haversack "$@"; }
