package PVE::Storage::FilesPlugin;

# The tests' base storages: files in `directory`. With `path` set they are named as a directory storage of Proxmox does
# (100/vm-100-disk-0.raw), and otherwise as LVM and the like (vm-100-disk-0), with snapshots and linked clones, which are copies.
# `prefix` is put before each path, as a storage does that QEMU opens by a protocol. What was done is noted in @CALLS.

use strict;
use warnings;

use File::Basename qw(basename dirname);
use File::Copy ();
use File::Path qw(make_path);

use base qw(PVE::Storage::Plugin);

our @CALLS;

sub type {
    return 'files';
}

my sub file_of {
    my ($scfg, $volname, $snap) = @_;
    my $name = ($volname =~ m{^([\w./+-]+)$})[0] // die "strange name '$volname'\n";
    # The part before a clone's own name says what it was made from.
    $name = basename($name) if !$scfg->{path};
    my ($directory) = $scfg->{directory} =~ m{^(/.+)$};
    return "$directory/$name" . ($snap ? "\@$snap" : '');
}

my sub copy {
    my ($from, $to) = @_;
    die "$to exists already\n" if -e $to;
    File::Copy::copy($from, $to) or die "cannot copy $from: $!\n";
    return;
}

sub parse_volname {
    my ($class, $volname) = @_;
    my ($name, $kind, $vmid) = $volname =~ m{((vm|base)-(\d+)-[^/]+)$} or die "unable to parse '$volname'\n";
    return ('images', $name, $vmid, undef, undef, $kind eq 'base', $name =~ m/\.qcow2$/ ? 'qcow2' : 'raw');
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;
    my $path = ($scfg->{prefix} // '') . file_of($scfg, $volname, $snapname);
    return wantarray ? ($path, ($class->parse_volname($volname))[2], 'images') : $path;
}

sub qemu_blockdev_options {
    my ($class, $scfg, $storeid, $volname, $version, $options) = @_;
    return { driver => 'file', filename => file_of($scfg, $volname, $options->{'snapshot-name'}) };
}

my sub free_name {
    my ($scfg, $vmid) = @_;
    my ($before, $after) = $scfg->{path} ? ("$vmid/", '.raw') : ('', '');
    my ($number) = grep { !-e file_of($scfg, "${before}vm-$vmid-disk-$_$after") } 0 .. 99;
    return "${before}vm-$vmid-disk-$number$after";
}

# A name as `rename_volume` takes it.
sub find_free_diskname {
    my ($class, $storeid, $scfg, $vmid, $format, $with_suffix) = @_;
    my $name = basename(free_name($scfg, $vmid));
    return $with_suffix ? $name : $name =~ s/\.raw$//r;
}

sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $format, $name, $kibibytes) = @_;
    die "illegal name '$name': it needs an extension\n" if $name && $scfg->{path} && $name !~ m/\.raw$/;
    my $volname = $name ? ($scfg->{path} ? "$vmid/$name" : $name) : free_name($scfg, $vmid);
    my $file = file_of($scfg, $volname);
    die "'$file' exists already\n" if -e $file;
    make_path(dirname($file));
    open(my $image, '>', $file) or die "$file: $!\n";
    truncate($image, $kibibytes * 1024) or die "$file: $!\n";
    return $volname;
}

sub free_image {
    my ($class, $storeid, $scfg, $volname) = @_;
    my $file = file_of($scfg, $volname);
    unlink($file, map { m/^(.+)$/ } glob("$file\@*"));
    return undef;
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;
    my ($directory) = $scfg->{directory} =~ m{^(/.+)$};
    my @images;
    for my $file (grep { !m/\@/ } glob($scfg->{path} ? "$directory/*/*" : "$directory/*")) {
        my $volname = $scfg->{path} ? basename(dirname($file)) . '/' . basename($file) : basename($file);
        my (undef, undef, $owner, undef, undef, undef, $format) = $class->parse_volname($volname);
        next if $vollist ? !grep { $_ eq "$storeid:$volname" } @$vollist : defined($vmid) && $owner ne $vmid;
        push @images, { volid => "$storeid:$volname", format => $format, size => -s $file, vmid => $owner };
    }
    return \@images;
}

sub status {
    return (1 << 40, 1 << 39, 1 << 39, 1);
}

sub activate_storage {
    push @CALLS, 'activate_storage';
    return;
}

sub activate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache, $hints) = @_;
    push @CALLS, "activate $volname" . ($snapname ? "\@$snapname" : '');
    my $file = file_of($scfg, $volname, $snapname);
    die "volume '$storeid:$volname' does not exist\n" if !-e $file;
    return;
}

sub deactivate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname) = @_;
    push @CALLS, "deactivate $volname" . ($snapname ? "\@$snapname" : '');
    return;
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout) = @_;
    my $size = -s file_of($scfg, $volname);
    return wantarray ? ($size, 'raw', $size, undef) : $size;
}

sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size, $running) = @_;
    truncate(file_of($scfg, $volname), $size) or die "cannot resize '$volname': $!\n";
    return 1;
}

sub volume_snapshot {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;
    copy(file_of($scfg, $volname), file_of($scfg, $volname, $snap));
    return;
}

sub volume_rollback_is_possible {
    return 1;
}

# The file stays the same one, as a device does.
sub volume_snapshot_rollback {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;
    File::Copy::copy(file_of($scfg, $volname, $snap), file_of($scfg, $volname)) or die "cannot roll back: $!\n";
    return;
}

sub volume_snapshot_delete {
    my ($class, $scfg, $storeid, $volname, $snap, $running) = @_;
    die "a base storage is told that QEMU has its volume\n" if $running;
    unlink(file_of($scfg, $volname, $snap)) or die "no snapshot '$snap' of '$volname'\n";
    return;
}

sub create_base {
    my ($class, $storeid, $scfg, $volname) = @_;
    my $base = $volname =~ s/vm-/base-/r;
    rename(file_of($scfg, $volname), file_of($scfg, $base)) or die "cannot rename '$volname': $!\n";
    return $base;
}

sub clone_image {
    my ($class, $scfg, $storeid, $volname, $vmid, $snap) = @_;
    my $clone = free_name($scfg, $vmid);
    copy(file_of($scfg, $volname, $snap), file_of($scfg, $clone));
    return $snap ? $clone : "$volname/$clone";
}

sub rename_volume {
    my ($class, $scfg, $storeid, $volname, $vmid, $new) = @_;
    $new //= $class->find_free_diskname($storeid, $scfg, $vmid, 'raw', 1);
    $new = "$vmid/$new" if $scfg->{path};
    make_path(dirname(file_of($scfg, $new)));
    rename(file_of($scfg, $volname), file_of($scfg, $new)) or die "cannot rename '$volname': $!\n";
    return "$storeid:$new";
}

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running, $options) = @_;
    my $is_base = ($class->parse_volname($volname))[5];
    return 1 if $feature =~ m/^(?:copy|rename|template|sparseinit|replicate)$/;
    return $scfg->{path} ? undef : 1 if $feature eq 'snapshot';
    # A directory's linked clones are qcow2 images.
    my $has_raw = !grep { $_ ne 'raw' } @{ $options->{valid_target_formats} // ['qcow2'] };
    return $scfg->{path} && $has_raw ? 0 : $is_base || $snapname ? 1 : undef if $feature eq 'clone';
    return undef;
}

sub volume_export_formats {
    return ('raw+size', 'zfs');
}

sub volume_import_formats {
    return ('raw+size');
}

sub volume_export {
    my ($class, $scfg, $storeid, $fh, $volname, $format) = @_;
    my $file = file_of($scfg, $volname);
    syswrite($fh, pack('Q<', -s $file));
    File::Copy::copy($file, $fh) or die "cannot export '$volname': $!\n";
    return;
}

sub volume_import {
    my ($class, $scfg, $storeid, $fh, $volname, $format) = @_;
    my $file = file_of($scfg, $volname);
    make_path(dirname($file));
    sysread($fh, my $size, 8) == 8 or die "no size\n";
    File::Copy::copy($fh, $file) or die "cannot import '$volname': $!\n";
    return "$storeid:$volname";
}

__PACKAGE__->register();

1;
