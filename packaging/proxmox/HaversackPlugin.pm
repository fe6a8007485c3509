package PVE::Storage::Custom::HaversackPlugin;

# A Proxmox VE storage whose volumes are those of another storage, its *base*, behind Haversack's cache. docs/proxmox.md says
# how to install it and what it refuses.
#
# The base's own plugin makes, lists, resizes, snapshots and removes volumes. This one attaches a volume to haversackd when it
# is activated, has QEMU open the daemon's NBD export of it, and detaches it, with everything written back, when it is
# deactivated.
#
# Invariants
# - While a disk is attached, nothing but haversackd writes its base volume: no path of it is given away, and what would change
#   it detaches it first or is refused.
# - Base images and snapshots are never written. So they are not cached, and are read where they are.
# - What is cached of a volume is forgotten before the volume is changed by anybody but haversackd, and when one of its name is
#   made. If several nodes can reach it, it is forgotten at each detach: another node could change the volume.
# - A volume that several nodes can reach is registered under each node that has it attached, from before that until nothing of
#   it is cached there any more. So a node that is down holds up nobody who needs nothing from it.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use IO::Socket::UNIX;

use PVE::INotify;
use PVE::Storage;
use PVE::Storage::Custom::Haversack::Disk;
use PVE::Storage::Plugin;

use base qw(PVE::Storage::Plugin);

# The storage API that this was written for, and the oldest one that has qemu_blockdev_options.
use constant NEWEST_API => 15;
use constant OLDEST_API => 12;

# The longest name of a disk, in bytes.
use constant NAME_BYTES => 64;
# How long QEMU waits for the daemon when it is restarted.
use constant RECONNECT_SECONDS => 60;

# The perl that takes a base volume's snapshot, as the command of `haversack disk quiesce`.
my $TAKE_SNAPSHOT = 'use PVE::Storage; PVE::Storage::volume_snapshot(PVE::Storage::config(), @ARGV);';

# Configuration

sub api {
    my $version = PVE::Storage::APIVER();
    return NEWEST_API if $version > NEWEST_API;
    return $version < OLDEST_API ? OLDEST_API : $version;
}

sub type {
    return 'haversack';
}

sub plugindata {
    return {
        content => [{ images => 1, none => 1 }, { images => 1 }],
        format => [{ raw => 1 }, 'raw'],
        'sensitive-properties' => {},
    };
}

sub properties {
    return {
        'haversack-base' => {
            description => "Storage that has the volumes. Its own content must not include 'images'.",
            type => 'string',
            format => 'pve-storage-id',
        },
        'haversack-pool' => {
            description => "Haversack's pool of cache devices, of the same name on all nodes.",
            type => 'string',
            pattern => '[A-Za-z0-9_][A-Za-z0-9._-]{0,63}',
            default => 'main',
        },
        'haversack-mode' => {
            description => "How disks are written: wb, wt-cache, wt, wa, wi, pt or auto. Used from the next activation on.",
            type => 'string',
            enum => ['wb', 'wt-cache', 'wt', 'wa', 'wi', 'pt', 'auto'],
            default => 'wb',
        },
        'haversack-control' => {
            description => "Control socket of haversackd.",
            type => 'string',
            format => 'pve-storage-path',
            default => $PVE::Storage::Custom::Haversack::Disk::CONTROL_SOCKET,
        },
        'haversack-nbd' => {
            description => "Unix socket of haversackd's [nbd] listen.",
            type => 'string',
            format => 'pve-storage-path',
            default => $PVE::Storage::Custom::Haversack::Disk::NBD_SOCKET,
        },
    };
}

sub options {
    return {
        'haversack-base' => { fixed => 1 },
        'haversack-pool' => { optional => 1 },
        'haversack-mode' => { optional => 1 },
        'haversack-control' => { optional => 1 },
        'haversack-nbd' => { optional => 1 },
        shared => { optional => 1 },
        nodes => { optional => 1 },
        disable => { optional => 1 },
        content => { optional => 1 },
        bwlimit => { optional => 1 },
    };
}

# The base storage: its plugin, its ID and its configuration.
my sub base_of {
    my ($storeid, $scfg) = @_;
    my $id = $scfg->{'haversack-base'} // die "storage '$storeid' names no base storage: set haversack-base\n";
    my $config = PVE::Storage::storage_config(PVE::Storage::config(), $id, 1)
        // die "storage '$id', the base of '$storeid', is not in storage.cfg\n";
    die "storage '$id' cannot be the base of '$storeid': it is a Haversack storage itself\n"
        if $config->{type} eq type();
    my $plugin = PVE::Storage::Plugin->lookup($config->{type});
    return { plugin => $plugin, id => $id, config => $config };
}

my sub check_base {
    my ($storeid, $scfg, $base) = @_;
    die "storage '$base->{id}' is the base of '$storeid' and offers its volumes to VMs itself, beside the cache: remove"
        . " 'images' from its content ('none', or where that is not possible another type, as 'rootdir' or 'iso')\n"
        if $base->{config}->{content} && $base->{config}->{content}->{images};
    die "storage '$storeid' must be shared as its base '$base->{id}' is: set or remove 'shared' in storage.cfg\n"
        if !!$scfg->{shared} != !!$base->{config}->{shared};
    return;
}

sub on_add_hook {
    my ($class, $storeid, $scfg, %sensitive) = @_;
    my $base = base_of($storeid, $scfg);
    $scfg->{shared} = 1 if $base->{config}->{shared};
    check_base($storeid, $scfg, $base);
    return;
}

# Names

my $NAME = qr/[\w.+-]+/;

sub parse_volname {
    my ($class, $volname) = @_;
    die "volume '$volname': only raw images can be behind Haversack\n" if $volname =~ m/\.(?:qcow2|qed|vmdk|subvol)$/;
    # As LVM, ZFS and RBD name them.
    if ($volname =~ m{^(?:(base-(\d+)-$NAME)/)?((vm|base)-(\d+)-$NAME)$}) {
        return ('images', $3, $5, $1, $2, $4 eq 'base' ? 'base-' : undef, 'raw');
    }
    # As directories do.
    if ($volname =~ m{^(\d+)/((vm|base)-(\d+)-$NAME\.raw)$} && $1 == $4) {
        return ('images', $2, $4, undef, undef, $3 eq 'base' ? 'base-' : undef, 'raw');
    }
    die "volume '$volname': the name is not that of a VM's disk\n";
}

# The volume as the base names it, which may be given as storages of another kind name it.
my sub base_volname {
    my ($class, $base, $volname) = @_;
    my (undef, $name, $vmid, $from, undef, undef) = $class->parse_volname($volname);
    (my $plain = $name) =~ s/\.raw$//;
    return "$vmid/$plain.raw" if $base->{config}->{path};
    return $volname =~ m{^\d+/} ? $plain : defined($from) ? "$from/$name" : $name;
}

# The disk's name, which is its export's: different for each volume of each storage, and the same on all nodes that share the
# storage. On another node, a volume of a local storage is another one, whatever its name.
my sub disk_name {
    my ($class, $storeid, $scfg, $volname) = @_;
    my @where = $scfg->{shared} ? ($storeid) : ($storeid, PVE::INotify::nodename());
    my $name = join('.', @where, ($class->parse_volname($volname))[1]);
    my $short = $name =~ s/[^A-Za-z0-9._-]/_/gr;
    if ($short ne $name || length($short) > NAME_BYTES) {
        my $digest = substr(sha256_hex($name), 0, 16);
        $short = substr($short, 0, NAME_BYTES - 1 - length($digest)) . "-$digest";
    }
    $short =~ m/^([A-Za-z0-9_][A-Za-z0-9._-]*)$/ or die "storage '$storeid': its name cannot be part of a disk's\n";
    return $1;
}

# The disk of a volume.
my sub disk_of {
    my ($class, $storeid, $scfg, $volname, %more) = @_;
    my $name = disk_name($class, $storeid, $scfg, $volname);
    return PVE::Storage::Custom::Haversack::Disk->new(scfg => $scfg, name => $name, %more);
}

# Base images and snapshots are only ever read.
my sub is_constant {
    my ($class, $volname, $snapname) = @_;
    return length($snapname // '') || defined(($class->parse_volname($volname))[5]);
}

# The base volume as an origin. haversackd could open images by protocol, but not so that they move between nodes, nor with
# credentials that only root can read.
my sub origin_of {
    my ($storeid, $base, $volname) = @_;
    my ($path) = $base->{plugin}->path($base->{config}, $volname, $base->{id});
    return $1 if $path =~ m{^(/.+)$}s;
    die "volume '$storeid:$volname': its base storage gives QEMU '$1:' and no block device; set 'krbd 1' for storage"
        . " '$base->{id}'\n"
        if $path =~ m/^(rbd):/;
    die "volume '$storeid:$volname': its base storage '$base->{id}' has no block device or file of it\n";
}

# For what changes or removes the volume itself.
my sub release {
    my ($class, $storeid, $scfg, $volname, %options) = @_;
    disk_of($class, $storeid, $scfg, $volname)->release(%options) if !is_constant($class, $volname);
    return;
}

# For a volume that has just been made: an earlier one of that name may be cached.
my sub forget_earlier {
    my ($class, $storeid, $scfg, $base, $volname) = @_;
    return $volname if eval { release($class, $storeid, $scfg, $volname); 1 };
    my $error = $@;
    eval { $base->{plugin}->free_image($base->{id}, $base->{config}, $volname, 0, 'raw') };
    warn $@ if $@;
    die "volume '$storeid:$volname' was removed again: $error";
}

# Storage

# The base's lock: containers on it, and other nodes, take that one.
sub cluster_lock_storage {
    my ($class, $storeid, $shared, $timeout, $func, @param) = @_;
    my $base = base_of($storeid, PVE::Storage::storage_config(PVE::Storage::config(), $storeid));
    return $base->{plugin}->cluster_lock_storage($base->{id}, $base->{config}->{shared}, $timeout, $func, @param);
}

sub check_connection {
    my ($class, $storeid, $scfg) = @_;
    my $path = PVE::Storage::Custom::Haversack::Disk->new(scfg => $scfg)->control_socket();
    die "haversackd does not answer on $path: $!\n" if !IO::Socket::UNIX->new(Peer => $path, Timeout => 2);
    return 1;
}

sub activate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;
    my $base = base_of($storeid, $scfg);
    check_base($storeid, $scfg, $base);
    return PVE::Storage::activate_storage(PVE::Storage::config(), $base->{id}, $cache);
}

sub deactivate_storage {
    return;
}

sub status {
    my ($class, $storeid, $scfg, $cache) = @_;
    my $base = base_of($storeid, $scfg);
    return $base->{plugin}->status($base->{id}, $base->{config}, $cache);
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;
    my $base = base_of($storeid, $scfg);
    my $wanted = $vollist ? [map { s/^\Q$storeid\E:/$base->{id}:/r } grep { m/^\Q$storeid\E:/ } @$vollist] : undef;
    my @images;
    for my $image (@{ $base->{plugin}->list_images($base->{id}, $base->{config}, $vmid, $wanted, $cache) }) {
        my $volname = $image->{volid} =~ s/^\Q$base->{id}\E://r;
        next if ($image->{format} // '') ne 'raw' || !eval { $class->parse_volname($volname) };
        push @images, { %$image, volid => "$storeid:$volname" };
    }
    return \@images;
}

# Volumes

sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $format, $name, $size) = @_;
    die "format '$format': only raw images can be behind Haversack\n" if $format ne 'raw';
    my $base = base_of($storeid, $scfg);
    # Proxmox adds this where a storage has a path, which this one has not.
    $name .= '.raw' if $name && $base->{config}->{path} && $name !~ m/\.raw$/;
    my $volname = $base->{plugin}->alloc_image($base->{id}, $base->{config}, $vmid, $format, $name, $size);
    return forget_earlier($class, $storeid, $scfg, $base, $volname);
}

sub free_image {
    my ($class, $storeid, $scfg, $volname, $is_base, $format) = @_;
    my $base = base_of($storeid, $scfg);
    release($class, $storeid, $scfg, $volname, destroy => 1);
    return $base->{plugin}->free_image($base->{id}, $base->{config}, $volname, $is_base, $format);
}

sub create_base {
    my ($class, $storeid, $scfg, $volname) = @_;
    my $base = base_of($storeid, $scfg);
    release($class, $storeid, $scfg, $volname);
    return $base->{plugin}->create_base($base->{id}, $base->{config}, $volname);
}

sub clone_image {
    my ($class, $scfg, $storeid, $volname, $vmid, $snap) = @_;
    die "volume '$storeid:$volname': its base storage makes no linked clones that are raw images: make a full clone\n"
        if !$class->volume_has_feature($scfg, 'clone', $storeid, $volname, $snap);
    my $base = base_of($storeid, $scfg);
    my $clone = $base->{plugin}->clone_image($base->{config}, $base->{id}, $volname, $vmid, $snap);
    return forget_earlier($class, $storeid, $scfg, $base, $clone);
}

sub rename_volume {
    my ($class, $scfg, $storeid, $volname, $target_vmid, $target_volname) = @_;
    my $base = base_of($storeid, $scfg);
    my $has_path = $base->{config}->{path};
    my $name = $target_volname
        || $base->{plugin}->find_free_diskname($base->{id}, $base->{config}, $target_vmid, 'raw', $has_path ? 1 : 0);
    $name .= '.raw' if $has_path && $name !~ m/\.raw$/;
    # Both names before anything is changed: an earlier volume of the new one may be cached.
    release($class, $storeid, $scfg, $volname);
    release($class, $storeid, $scfg, $has_path ? "$target_vmid/$name" : $name);
    my $volid = $base->{plugin}->rename_volume($base->{config}, $base->{id}, $volname, $target_vmid, $name);
    return $volid =~ s/^\Q$base->{id}\E:/$storeid:/r;
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout) = @_;
    my $base = base_of($storeid, $scfg);
    return $base->{plugin}->volume_size_info($base->{config}, $base->{id}, $volname, $timeout);
}

sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size, $running, $snapname) = @_;
    die "a snapshot cannot be resized\n" if defined($snapname);
    die "volume '$storeid:$volname' cannot grow while its VM runs, because an NBD client sees a disk's size only when it"
        . " connects: shut the VM down, and resize the disk then\n"
        if $running;
    my $base = base_of($storeid, $scfg);
    my $disk = disk_of($class, $storeid, $scfg, $volname);
    $disk->check_no_holder();
    $disk->detach();
    return $base->{plugin}->volume_resize($base->{config}, $base->{id}, $volname, $size, 0);
}

sub filesystem_path {
    my ($class, $scfg, $volname, $snapname) = @_;
    die "volume '$volname' has no file: QEMU opens it over NBD\n";
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;
    my ($type, undef, $vmid) = $class->parse_volname($volname);
    if (is_constant($class, $volname, $snapname)) {
        my $base = base_of($storeid, $scfg);
        return $base->{plugin}->path($base->{config}, $volname, $base->{id}, $snapname);
    }
    my $disk = disk_of($class, $storeid, $scfg, $volname);
    my $path = "nbd+unix:///$disk->{name}?socket=" . $disk->nbd_socket();
    return wantarray ? ($path, $vmid, $type) : $path;
}

sub qemu_blockdev_options {
    my ($class, $scfg, $storeid, $volname, $machine_version, $options) = @_;
    if (is_constant($class, $volname, $options->{'snapshot-name'})) {
        my $base = base_of($storeid, $scfg);
        return $base->{plugin}
            ->qemu_blockdev_options($base->{config}, $base->{id}, $volname, $machine_version, $options);
    }
    my $disk = disk_of($class, $storeid, $scfg, $volname);
    return {
        driver => 'nbd',
        server => { type => 'unix', path => $disk->nbd_socket() },
        export => $disk->{name},
        'reconnect-delay' => int(RECONNECT_SECONDS),
    };
}

sub map_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $hints) = @_;
    if (is_constant($class, $volname, $snapname)) {
        my $base = base_of($storeid, $scfg);
        return $base->{plugin}->map_volume($base->{id}, $base->{config}, $volname, $snapname, $hints);
    }
    die "volume '$storeid:$volname' is no block device of this node, only an NBD export: put TPM states and containers on"
        . " another storage\n";
}

sub unmap_volume {
    my ($class, $storeid, $scfg, $volname, $snapname) = @_;
    return 1 if !is_constant($class, $volname, $snapname);
    my $base = base_of($storeid, $scfg);
    return $base->{plugin}->unmap_volume($base->{id}, $base->{config}, $volname, $snapname);
}

sub activate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache, $hints) = @_;
    my $base = base_of($storeid, $scfg);
    check_base($storeid, $scfg, $base);
    my $is_constant = is_constant($class, $volname, $snapname);
    # The daemon has a volume open that is attached: the base must not deactivate it to apply a hint.
    $hints = { %$hints, 'plugin-may-deactivate-volume' => 0 } if $hints && !$is_constant;
    $base->{plugin}->activate_volume($base->{id}, $base->{config}, $volname, $snapname, $cache, $hints);
    return if $is_constant;
    my $origin = origin_of($storeid, $base, $volname);
    my $size = sub { return scalar($base->{plugin}->volume_size_info($base->{config}, $base->{id}, $volname, 10)) };
    disk_of($class, $storeid, $scfg, $volname, origin => $origin, size => $size)->attach();
    return;
}

sub deactivate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache) = @_;
    my $base = base_of($storeid, $scfg);
    disk_of($class, $storeid, $scfg, $volname)->detach() if !is_constant($class, $volname, $snapname);
    return $base->{plugin}->deactivate_volume($base->{id}, $base->{config}, $volname, $snapname, $cache);
}

# Snapshots: the base's own, taken while it has everything that the VM has written.

sub volume_qemu_snapshot_method {
    return 'storage';
}

sub volume_snapshot {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;
    my $base = base_of($storeid, $scfg);
    my $disk = disk_of($class, $storeid, $scfg, $volname);
    my $shown = $disk->settled();
    if (!is_constant($class, $volname) && $shown && $shown->{state} ne 'detached') {
        my ($volid) = "$base->{id}:$volname" =~ m/^(.+)$/;
        my ($name) = $snap =~ m/^([\w-]+)$/ or die "'$snap' is not a snapshot's name\n";
        $disk->quiesce('/usr/bin/perl', '-e', $TAKE_SNAPSHOT, $volid, $name);
        return;
    }
    die "the cache has $shown->{usage}->{dirty_bytes} bytes of disk '$disk->{name}' that its storage does not have: start the"
        . " VM and shut it down again, then take the snapshot\n"
        if $shown && $shown->{usage}->{dirty_bytes};
    $disk->check_no_holder();
    return $base->{plugin}->volume_snapshot($base->{config}, $base->{id}, $volname, $snap);
}

sub volume_rollback_is_possible {
    my ($class, $scfg, $storeid, $volname, $snap, $blockers) = @_;
    my $base = base_of($storeid, $scfg);
    return $base->{plugin}->volume_rollback_is_possible($base->{config}, $base->{id}, $volname, $snap, $blockers);
}

sub volume_snapshot_rollback {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;
    my $base = base_of($storeid, $scfg);
    release($class, $storeid, $scfg, $volname);
    return $base->{plugin}->volume_snapshot_rollback($base->{config}, $base->{id}, $volname, $snap);
}

sub volume_snapshot_delete {
    my ($class, $scfg, $storeid, $volname, $snap, $running) = @_;
    my $base = base_of($storeid, $scfg);
    # Not running as the base's plugin means it: QEMU does not have its volume, and does nothing about the snapshot.
    return $base->{plugin}->volume_snapshot_delete($base->{config}, $base->{id}, $volname, $snap, 0);
}

sub volume_snapshot_info {
    my ($class, $scfg, $storeid, $volname) = @_;
    my $base = base_of($storeid, $scfg);
    return $base->{plugin}->volume_snapshot_info($base->{config}, $base->{id}, $volname);
}

sub rename_snapshot {
    die "snapshots of volumes behind Haversack cannot be renamed\n";
}

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running, $options) = @_;
    # Replication would read the base volume as it is, without what is only in the cache.
    return undef if $feature eq 'replicate';
    my $base = base_of($storeid, $scfg);
    my $raw = { %{ $options // {} }, valid_target_formats => ['raw'] };
    return $base->{plugin}
        ->volume_has_feature($base->{config}, $feature, $base->{id}, $volname, $snapname, $running, $raw);
}

# Copies to and from other nodes

sub volume_export_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;
    my $base = base_of($storeid, $scfg);
    return grep { $_ eq 'raw+size' } $base->{plugin}->volume_export_formats(
        $base->{config}, $base->{id}, $volname, $snapshot, $base_snapshot, $with_snapshots,
    );
}

sub volume_export {
    my ($class, $scfg, $storeid, $fh, $volname, @more) = @_;
    my $base = base_of($storeid, $scfg);
    # The base's plugin reads its volume, which Proxmox has activated here. Nobody writes it meanwhile.
    disk_of($class, $storeid, $scfg, $volname)->flush() if !is_constant($class, $volname);
    return $base->{plugin}->volume_export($base->{config}, $base->{id}, $fh, $volname, @more);
}

sub volume_import_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;
    my $base = base_of($storeid, $scfg);
    return grep { $_ eq 'raw+size' } $base->{plugin}->volume_import_formats(
        $base->{config}, $base->{id}, base_volname($class, $base, $volname), $snapshot, $base_snapshot, $with_snapshots,
    );
}

sub volume_import {
    my ($class, $scfg, $storeid, $fh, $volname, @more) = @_;
    my $base = base_of($storeid, $scfg);
    my $wanted = base_volname($class, $base, $volname);
    my $volid = $base->{plugin}->volume_import($base->{config}, $base->{id}, $fh, $wanted, @more);
    my $made = $volid =~ s/^\Q$base->{id}\E://r;
    return "$storeid:" . forget_earlier($class, $storeid, $scfg, $base, $made);
}

1;
