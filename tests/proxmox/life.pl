#!/usr/bin/perl -T
# The whole life of volumes behind Haversack, on one node, with a real haversackd: see Scene.pm for what it needs.

use strict;
use warnings;

use FindBin;
use POSIX ();
use lib ($FindBin::Bin =~ m{^(/.+)$})[0];
use Scene;
use Test::More;

my $MIB = 1 << 20;
my %here = node('alpha');
my ($flat, $named) = map { directory() . "/$_" } qw(flat named);
mkdir($_) for $flat, $named;

# The storages: a base as LVM and the like are, one as a directory is, and a Haversack storage on each.
my %cfg = (
    flat => { type => 'files', directory => $flat, content => { rootdir => 1 } },
    named => { type => 'files', directory => $named, path => $named, content => { none => 1 } },
    fast => { type => 'haversack', 'haversack-base' => 'flat', content => { images => 1 }, %here },
    quick => { type => 'haversack', 'haversack-base' => 'named', content => { images => 1 }, 'haversack-mode' => 'wt', %here },
);
configure(%cfg);

sub alloc {
    my ($id, $vmid, $name, $mebibytes) = @_;
    return $PLUGIN->alloc_image($id, storage($id), $vmid, 'raw', $name, ($mebibytes // 16) * 1024);
}

sub activate {
    my ($id, $volname, $snap) = @_;
    return $PLUGIN->activate_volume($id, storage($id), $volname, $snap, {}, { 'plugin-may-deactivate-volume' => 1 });
}

sub deactivate {
    my ($id, $volname, $snap) = @_;
    return $PLUGIN->deactivate_volume($id, storage($id), $volname, $snap, {});
}

sub release {
    my ($id, $volname, $is_base) = @_;
    return $PLUGIN->free_image($id, storage($id), $volname, $is_base, 'raw');
}

subtest 'what Proxmox asks of a plug-in' => sub {
    is($PLUGIN->type(), 'haversack', 'its type');
    is($PLUGIN->api(), 15, 'its version of the interface');
    my $properties = $PLUGIN->properties();
    my %known = (%$properties, map { $_ => 1 } qw(shared nodes disable content bwlimit));
    is_deeply([grep { !$known{$_} } keys %{ $PLUGIN->options() }], [], 'its options are properties');
    # Properties are those of all plug-ins together.
    is_deeply([grep { !m/^haversack-/ } keys %$properties], [], 'its own properties are named after it');
};

subtest 'names' => sub {
    my %parsed = (
        'vm-100-disk-0' => ['images', 'vm-100-disk-0', 100, undef, undef, undef, 'raw'],
        'base-9000-disk-0' => ['images', 'base-9000-disk-0', 9000, undef, undef, 'base-', 'raw'],
        'base-9000-disk-0/vm-100-disk-1' => ['images', 'vm-100-disk-1', 100, 'base-9000-disk-0', 9000, undef, 'raw'],
        '100/vm-100-disk-0.raw' => ['images', 'vm-100-disk-0.raw', 100, undef, undef, undef, 'raw'],
        'vm-100-cloudinit' => ['images', 'vm-100-cloudinit', 100, undef, undef, undef, 'raw'],
    );
    is_deeply([$PLUGIN->parse_volname($_)], $parsed{$_}, $_) for sort keys %parsed;
    for my $name ('vm-1-d; reboot', '../vm-1-disk-0', '200/vm-100-disk-0.raw', 'iso/debian.iso', 'lun0', "vm-1-a\nb", '-x') {
        dies_like(sub { $PLUGIN->parse_volname($name) }, qr/not that of a VM's disk/, $name =~ s/\n/ /r);
    }
    for my $name ('100/vm-100-disk-0.qcow2', 'vm-100-disk-0.qcow2') {
        dies_like(sub { $PLUGIN->parse_volname($name) }, qr/only raw images/, $name);
    }
    my $export = sub { $PLUGIN->qemu_blockdev_options(storage('fast'), 'fast', $_[0], '10.0', {})->{export} };
    is($export->('vm-100-disk-0'), 'fast.alpha.vm-100-disk-0', 'the disk is named after node and volume');
    my @long = map { $export->('vm-100-state-' . 'x' x 60 . $_) } qw(a b);
    is_deeply([map { length } @long], [64, 64], 'a long name is cut');
    isnt($long[0], $long[1], 'and still different from others');
    like($export->('vm-100-state-a+b'), qr/^fast\.alpha\.vm-100-state-a_b-[0-9a-f]{16}$/, 'a name that Haversack does not allow');
};

subtest 'bases that are refused' => sub {
    my $add = sub {
        my (%change) = @_;
        configure(%cfg, flat => { %{ $cfg{flat} }, %{ $change{base} // {} } });
        my $scfg = { %{ $cfg{fast} }, %{ $change{own} // {} } };
        $PLUGIN->on_add_hook('fast', $scfg);
        $PLUGIN->activate_storage('fast', $scfg, {});
        return $scfg;
    };
    dies_like(sub { $add->(base => { content => { images => 1 } }) }, qr/offers its volumes to VMs itself/, 'images beside us');
    dies_like(sub { $add->(own => { 'haversack-base' => 'none' }) }, qr/'none'.* is not in storage.cfg/, 'no such storage');
    dies_like(sub { $add->(own => { 'haversack-base' => 'quick' }) }, qr/is a Haversack storage itself/, 'itself');
    dies_like(sub { $add->(base => { disable => 1 }) }, qr/disabled/, 'a disabled one');
    dies_like(sub { $add->(own => { shared => 1 }) }, qr/must be shared as its base/, 'shared, and its base is not');
    is($add->(base => { shared => 1 })->{shared}, 1, 'it is shared if its base is');
    configure(%cfg, flat => { %{ $cfg{flat} }, content => { images => 1 } });
    dies_like(sub { activate('fast', 'vm-100-disk-0') }, qr/offers its volumes/, 'changed later');
    configure(%cfg);
};

subtest 'from allocation to removal' => sub {
    my $volname = alloc('fast', 100);
    is($volname, 'vm-100-disk-0', 'allocated');
    my $file = "$flat/$volname";
    my ($listed) = @{ $PLUGIN->list_images('fast', storage('fast'), 100, undef, {}) };
    is_deeply([@$listed{qw(volid format size)}], ["fast:$volname", 'raw', 16 * $MIB], 'listed');
    is(@{ $PLUGIN->list_images('fast', storage('fast'), undef, ["fast:$volname", 'flat:x'], {}) }, 1, 'listed by its ID');
    is(shown('fast', $volname), undef, 'not attached yet');

    activate('fast', $volname);
    is(shown('fast', $volname)->{state}, 'attached', 'attached');
    is(shown('fast', $volname)->{mode}, 'wb', 'in write-back mode');
    activate('fast', $volname);
    is(shown('fast', $volname)->{state}, 'attached', 'activated twice');
    my ($path, $vmid, $type) = $PLUGIN->path(storage('fast'), $volname, 'fast');
    is_deeply(
        [$path, $vmid, $type],
        ["nbd+unix:///fast.alpha.$volname?socket=$here{'haversack-nbd'}", 100, 'images'],
        'its path',
    );
    ok(put('fast', $volname, 0x11, 0, $MIB), 'written');
    my $image = directory() . '/image';
    open(my $new, '>', $image) or die "$image: $!\n";
    print $new "\x22" x $MIB;
    close($new);
    PVE::Tools::run_command(['nbdcopy', '--flush', $image, $path]);
    ok(reads('fast', $volname, 0x22, 0, $MIB), 'its path serves other NBD clients');
    ok(!contents($file, 0x22, 0, $MIB), 'the base does not have everything yet');

    my $client = client('fast', $volname);
    {
        no warnings 'redefine';
        local *PVE::Storage::Custom::Haversack::Disk::CLOSING_SECONDS = sub { 0 };
        dies_like(sub { deactivate('fast', $volname) }, qr/cannot be detached/, 'not deactivated while its VM runs');
        dies_like(sub { release('fast', $volname) }, qr/cannot be detached/, 'not removed while its VM runs');
    }
    ok(-e $file, 'it is still there');
    undef $client;
    deactivate('fast', $volname);
    ok(contents($file, 0x22, 0, $MIB), 'deactivated: the base has what was written');
    is(shown('fast', $volname)->{state}, 'detached', 'detached');
    deactivate('fast', $volname);
    is($PVE::Storage::FilesPlugin::CALLS[-1], "deactivate $volname", 'deactivated twice');

    activate('fast', $volname);
    ok(reads('fast', $volname, 0x22, 0, $MIB), 'activated again');
    put('fast', $volname, 0x33, 0, $MIB);
    release('fast', $volname);
    ok(!-e $file, 'removed while it was attached');
    is(shown('fast', $volname), undef, 'and forgotten');
    release('fast', $volname);
    is(alloc('fast', 100), $volname, 'another one of that name');
    activate('fast', $volname);
    ok(reads('fast', $volname, 0, 0, $MIB), 'has nothing of the first one');
    release('fast', $volname);
};

subtest 'activated by several at once' => sub {
    my $volname = alloc('fast', 100);
    my @children;
    for (1 .. 4) {
        my $child = fork() // die "cannot fork: $!\n";
        if (!$child) {
            my $is_right = eval { activate('fast', $volname); 1 };
            print STDERR $@ if !$is_right;
            POSIX::_exit($is_right ? 0 : 1);
        }
        push @children, $child;
    }
    is_deeply([map { waitpid($_, 0); $? } @children], [0, 0, 0, 0], 'all are told that it is');
    is(shown('fast', $volname)->{state}, 'attached', 'and it is');
    release('fast', $volname);
};

subtest 'a directory' => sub {
    my $volname = alloc('quick', 100, 'vm-100-cloudinit', 4);
    is($volname, '100/vm-100-cloudinit.raw', 'a name without an extension gets one');
    activate('quick', $volname);
    is(shown('quick', $volname)->{mode}, 'wt', 'the write mode of its storage');
    ok(put('quick', $volname, 0x44, 0, 65536), 'written');
    ok(contents("$named/$volname", 0x44, 0, 65536), 'written through');
    dies_like(
        sub { $PLUGIN->alloc_image('quick', storage('quick'), 100, 'qcow2', undef, 1024) },
        qr/only raw images/, 'no qcow2 images',
    );
    my ($base) = $PLUGIN->create_base('quick', storage('quick'), $volname);
    is($base, '100/base-100-cloudinit.raw', 'a template');
    ok(!$PLUGIN->volume_has_feature(storage('quick'), 'clone', 'quick', $base), 'no linked clones, which are qcow2 images');
    dies_like(
        sub { $PLUGIN->clone_image(storage('quick'), 'quick', $base, 101) },
        qr/make a full clone/, 'and it says so',
    );
    open(my $other, '>', "$named/100/vm-100-disk-9.qcow2");
    is(@{ $PLUGIN->list_images('quick', storage('quick'), 100, undef, {}) }, 1, 'images of other formats are not listed');
    release('quick', $base, 1);
};

subtest 'snapshots' => sub {
    my ($volname, $scfg) = (alloc('fast', 100), storage('fast'));
    ok($PLUGIN->volume_has_feature($scfg, 'snapshot', 'fast', $volname, undef, 1), 'the base has them');
    is($PLUGIN->volume_qemu_snapshot_method('fast', $scfg, $volname), 'storage', 'QEMU does not take them');
    activate('fast', $volname);
    put('fast', $volname, 0x11, 0, $MIB);
    my $client = client('fast', $volname);
    $PLUGIN->volume_snapshot($scfg, 'fast', $volname, 'monday');
    ok(contents("$flat/$volname\@monday", 0x11, 0, $MIB), 'a snapshot has what the VM has written');
    is(shown('fast', $volname)->{mode}, 'wb', 'the write mode is back');
    dies_like(
        sub { $PLUGIN->volume_snapshot($scfg, 'fast', $volname, 'monday') },
        qr/exists already/, 'an error of the base is told',
    );
    dies_like(sub { $PLUGIN->volume_snapshot($scfg, 'fast', $volname, 'a;b') }, qr/not a snapshot's name/, 'a strange name');
    put('fast', $volname, 0x22, 0, $MIB);
    is($PLUGIN->path($scfg, $volname, 'fast', 'monday'), "$flat/$volname\@monday", 'a snapshot is read at the base');
    activate('fast', $volname, 'monday');
    is($PVE::Storage::FilesPlugin::CALLS[-1], "activate $volname\@monday", 'and activated there');
    deactivate('fast', $volname, 'monday');
    is(shown('fast', $volname)->{state}, 'attached', 'its disk stays');
    undef $client;

    # Read again afterwards, it is in the cache.
    ok(reads('fast', $volname, 0x22, 0, $MIB), 'before the rollback');
    $PLUGIN->volume_snapshot_rollback($scfg, 'fast', $volname, 'monday');
    is(shown('fast', $volname), undef, 'rolled back, and nothing is cached of what was');
    activate('fast', $volname);
    ok(reads('fast', $volname, 0x11, 0, $MIB), 'so it has what the snapshot has');
    deactivate('fast', $volname);
    $PLUGIN->volume_snapshot($scfg, 'fast', $volname, 'tuesday');
    ok(contents("$flat/$volname\@tuesday", 0x11, 0, $MIB), 'a snapshot of a VM that is off');
    $PLUGIN->volume_snapshot_delete($scfg, 'fast', $volname, $_, 1) for qw(monday tuesday);
    ok(!-e "$flat/$volname\@monday", 'removed');
    dies_like(sub { $PLUGIN->rename_snapshot($scfg, 'fast', $volname, 'a', 'b') }, qr/cannot be renamed/, 'not renamed');
    release('fast', $volname);
};

subtest 'templates and clones' => sub {
    my ($volname, $scfg) = (alloc('fast', 9000), storage('fast'));
    activate('fast', $volname);
    put('fast', $volname, 0x55, 0, $MIB);
    my $base = $PLUGIN->create_base('fast', $scfg, $volname);
    is($base, 'base-9000-disk-0', 'a template');
    ok(contents("$flat/$base", 0x55, 0, $MIB), 'with what was written');
    is(shown('fast', $volname), undef, 'nothing of it is cached');
    activate('fast', $base);
    is($PLUGIN->path($scfg, $base, 'fast'), "$flat/$base", 'it is read at the base');
    is($PLUGIN->qemu_blockdev_options($scfg, 'fast', $base, '10.0', {})->{driver}, 'file', 'by QEMU, too');
    is($PLUGIN->map_volume('fast', $scfg, $base), "$flat/$base", 'and by others');
    is(shown('fast', $base), undef, 'and not attached');
    my $clone = $PLUGIN->clone_image($scfg, 'fast', $base, 101);
    is($clone, 'base-9000-disk-0/vm-101-disk-0', 'a linked clone');
    activate('fast', $clone);
    ok(reads('fast', $clone, 0x55, 0, $MIB), 'has what the template has');
    release('fast', $clone);
    deactivate('fast', $base);
    release('fast', $base, 1);
};

subtest 'a new size, a new owner' => sub {
    my ($volname, $scfg) = (alloc('fast', 100), storage('fast'));
    activate('fast', $volname);
    put('fast', $volname, 0x66, 0, $MIB);
    dies_like(
        sub { $PLUGIN->volume_resize($scfg, 'fast', $volname, 32 * $MIB, 1) },
        qr/cannot grow while its VM runs/, 'not while it runs',
    );
    dies_like(
        sub { $PLUGIN->volume_resize($scfg, 'fast', $volname, 32 * $MIB, 0, 'monday') },
        qr/snapshot cannot be resized/, 'not a snapshot',
    );
    $PLUGIN->volume_resize($scfg, 'fast', $volname, 32 * $MIB, 0);
    is($PLUGIN->volume_size_info($scfg, 'fast', $volname), 32 * $MIB, 'larger at the base');
    activate('fast', $volname);
    ok(put('fast', $volname, 0x77, 31 * $MIB, $MIB), 'larger for the VM');
    ok(reads('fast', $volname, 0x66, 0, $MIB), 'with what it had');
    # Another VM had a volume of the new name, which was removed behind Haversack.
    my $earlier = alloc('fast', 200);
    activate('fast', $earlier);
    put('fast', $earlier, 0x11, 0, $MIB);
    deactivate('fast', $earlier);
    unlink("$flat/$earlier") or die "$earlier: $!\n";
    is($PLUGIN->rename_volume($scfg, 'fast', $volname, 200), "fast:$earlier", 'given to another VM');
    ok(contents("$flat/$earlier", 0x77, 31 * $MIB, $MIB), 'with what was written');
    is(shown('fast', $volname), undef, 'nothing is cached under the old name');
    is(shown('fast', $earlier), undef, 'nor under the new one');
    activate('fast', $earlier);
    ok(reads('fast', $earlier, 0x66, 0, $MIB), 'so it has its own data');
    release('fast', $earlier);

    my $inner = alloc('quick', 100);
    is($PLUGIN->rename_volume(storage('quick'), 'quick', $inner, 200), 'quick:200/vm-200-disk-0.raw', 'in a directory');
    is($PLUGIN->rename_volume(storage('quick'), 'quick', '200/vm-200-disk-0.raw', 100, 'vm-100-data'),
        'quick:100/vm-100-data.raw', 'with a name that was given');
    release('quick', '100/vm-100-data.raw');
};

subtest 'a volume is not renamed while a client has one of the new name' => sub {
    my ($volname, $scfg, $taken) = (alloc('fast', 100), storage('fast'), alloc('fast', 200));
    activate('fast', $taken);
    my $client = client('fast', $taken);
    {
        no warnings 'redefine';
        local *PVE::Storage::Custom::Haversack::Disk::CLOSING_SECONDS = sub { 0 };
        dies_like(sub { $PLUGIN->rename_volume($scfg, 'fast', $volname, 200, $taken) }, qr/cannot be detached/, 'refused');
    }
    ok(-e "$flat/$volname", 'it has its old name');
    undef $client;
    release('fast', $_) for $volname, $taken;
};

subtest 'copies' => sub {
    my ($volname, $scfg) = (alloc('fast', 100), storage('fast'));
    activate('fast', $volname);
    put('fast', $volname, 0x12, 0, $MIB);
    is_deeply([$PLUGIN->volume_export_formats($scfg, 'fast', $volname)], ['raw+size'], 'the format that every storage has');
    open(my $stream, '+>', directory() . '/stream') or die "stream: $!\n";
    $PLUGIN->volume_export($scfg, 'fast', $stream, $volname, 'raw+size');
    deactivate('fast', $volname);
    sysseek($stream, 0, 0);
    is_deeply([$PLUGIN->volume_import_formats(storage('quick'), 'quick', $volname)], ['raw+size'], 'where it goes');
    my $volid = $PLUGIN->volume_import(storage('quick'), 'quick', $stream, $volname, 'raw+size');
    is($volid, 'quick:100/vm-100-disk-0.raw', 'as a directory names it');
    ok(contents("$named/100/vm-100-disk-0.raw", 0x12, 0, $MIB), 'with what was only in the cache');
    release('fast', $volname);
    release('quick', '100/vm-100-disk-0.raw');
    ok(!$PLUGIN->volume_has_feature($scfg, 'replicate', 'fast', $volname), 'no replication');
};

subtest 'what cannot be' => sub {
    my ($volname, $scfg) = (alloc('fast', 100), storage('fast'));
    dies_like(sub { activate('fast', 'vm-100-disk-7') }, qr/does not exist/, 'a volume that is not there');
    dies_like(sub { $PLUGIN->map_volume('fast', $scfg, $volname) }, qr/put TPM states/, 'a device of the node');
    dies_like(sub { $PLUGIN->filesystem_path($scfg, $volname) }, qr/over NBD/, 'a file');
    configure(%cfg, flat => { %{ $cfg{flat} }, prefix => 'rbd:' });
    dies_like(sub { activate('fast', $volname) }, qr/set 'krbd 1' for storage 'flat'/, 'librbd');
    configure(%cfg, flat => { %{ $cfg{flat} }, prefix => 'iscsi:/' });
    dies_like(sub { activate('fast', $volname) }, qr/no block device or file/, 'another protocol');
    configure(%cfg);

    my $elsewhere = directory() . '/elsewhere';
    open(my $image, '>', $elsewhere);
    truncate($image, $MIB);
    haversack('fast', 'disk', 'attach', "fast.alpha.$volname", $elsewhere, '--pool', $here{'haversack-pool'});
    dies_like(sub { activate('fast', $volname) }, qr/attached with another origin/, 'a disk of that name with another origin');
    haversack('fast', 'disk', 'detach', "fast.alpha.$volname");
    haversack('fast', 'disk', 'forget', "fast.alpha.$volname");

    my $wrong = { %$scfg, 'haversack-pool' => 'nowhere' };
    dies_like(sub { $PLUGIN->activate_volume('fast', $wrong, $volname, undef, {}) }, qr/nowhere/, 'a pool that is not there');
    dies_like(
        sub { $PLUGIN->activate_volume('fast', { %$scfg, 'haversack-pool' => '--force' }, $volname, undef, {}) },
        qr/is not valid/, 'a pool that is an option',
    );
    ok($PLUGIN->check_connection('fast', $scfg), 'the daemon answers');
    my $away = { %$scfg, 'haversack-control' => directory() . '/nobody.sock' };
    dies_like(sub { $PLUGIN->check_connection('fast', $away) }, qr/does not answer/, 'no daemon');
    for my $do (
        sub { $PLUGIN->activate_volume('fast', $away, $volname, undef, {}) },
        sub { $PLUGIN->deactivate_volume('fast', $away, $volname, undef, {}) },
        sub { $PLUGIN->free_image('fast', $away, $volname, 0, 'raw') },
        )
    {
        dies_like($do, qr/cannot reach the daemon/, 'nothing is done without the daemon');
    }
    ok(-e "$flat/$volname", 'the volume is still there');
    release('fast', $volname);
};

subtest 'the lock and the room are those of the base' => sub {
    is($PLUGIN->cluster_lock_storage('fast', 0, undef, sub { "got $_[0]" }, 'it'), 'got it', 'what runs under the lock');
    is($PVE::Storage::Plugin::LOCKED, 'flat', 'the base is locked');
    is(($PLUGIN->status('fast', storage('fast'), {}))[0], 1 << 40, 'the room of the base');
};

done_testing();
