mkdir -p /usr/share/doc/haversack/examples
cp -r "$WORKSPACE/packaging/proxmox" /usr/share/doc/haversack/examples
