package PVE::Storage::Plugin;

# A stand-in for Proxmox's module: the register of plug-ins, and the methods that the plug-in of the tests' base storages
# inherits.

use strict;
use warnings;

my %plugins;
# The storage whose lock was taken last.
our $LOCKED;

sub register {
    my ($class) = @_;
    $plugins{ $class->type() } = $class;
    return;
}

sub lookup {
    my ($class, $type) = @_;
    return $plugins{$type} // die "unknown type of a storage '$type'\n";
}

sub cluster_lock_storage {
    my ($class, $storeid, $shared, $timeout, $func, @param) = @_;
    $LOCKED = $storeid;
    return $func->(@param);
}

sub check_connection {
    return 1;
}

sub map_volume {
    my ($class, $storeid, $scfg, $volname, $snapname) = @_;
    my ($path) = $class->path($scfg, $volname, $storeid, $snapname);
    return $path;
}

sub unmap_volume {
    return 1;
}

1;
