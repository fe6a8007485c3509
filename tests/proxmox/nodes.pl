#!/usr/bin/perl -T
# A storage that nodes share, with a real haversackd for node alpha and one for node beta, which know each other and a host
# gamma that never runs: see Scene.pm for what it needs.

use strict;
use warnings;

use FindBin;
use lib ($FindBin::Bin =~ m{^(/.+)$})[0];
use Scene;
use Test::More;

my $MIB = 1 << 20;
my ($volumes, $register) = map { directory() . "/$_" } qw(volumes register);
mkdir($volumes);
my $volname = 'vm-100-disk-0';
my $name = "fast.$volname";

# From now on, the plug-in is on this node. All nodes have the same storages but for the sockets, which are on one machine here.
sub on {
    my ($node, %change) = @_;
    my %here = node($node);
    configure(
        volumes => { type => 'files', directory => $volumes, content => { rootdir => 1 }, shared => 1 },
        fast => {
            type => 'haversack', 'haversack-base' => 'volumes', content => { images => 1 }, shared => 1, %here, %change,
        },
    );
    return;
}

sub activate {
    return $PLUGIN->activate_volume('fast', storage('fast'), $volname, undef, {});
}

sub deactivate {
    return $PLUGIN->deactivate_volume('fast', storage('fast'), $volname, undef, {});
}

sub alloc {
    return $PLUGIN->alloc_image('fast', storage('fast'), 100, 'raw', undef, 16 * 1024);
}

sub release {
    return $PLUGIN->free_image('fast', storage('fast'), $volname, undef, 'raw');
}

sub state {
    return haversack('fast', 'migrate', 'status', $name)->{state};
}

# The nodes that are registered as having the disk.
sub registered {
    return join(' ', sort map { m/\@(\w+)$/ } glob("$register/$name\@*"));
}

sub set_nodes {
    no warnings 'once';
    @PVE::Cluster::NODES = @_;
    return;
}

sub mark {
    my ($node) = @_;
    open(my $file, '>', "$register/$name\@$node") or die "$register: $!\n";
    return;
}

on('alpha');
for (1 .. 100) {
    last if grep { $_->{name} eq 'beta' && $_->{is_connected} } @{ haversack('fast', 'host', 'list') };
    select(undef, undef, undef, 0.1);
}

subtest 'nodes that must know each other' => sub {
    set_nodes(qw(alpha beta delta));
    is(alloc(), $volname, 'allocated');
    dies_like(\&activate, qr/node 'delta' can use the storage, too, and haversackd does not know it/, 'one is not known');
    is(registered(), '', 'nothing is registered');
    on('alpha', nodes => { alpha => 1 });
    activate();
    is(registered(), '', 'on one node alone, there is nobody to tell');
    put('fast', $volname, 0x10, 0, $MIB);
    deactivate();
    is(shown('fast', $volname)->{state}, 'detached', 'and it stays in the cache');
    on('alpha', nodes => { alpha => 1, beta => 1 });
    activate();
    is(registered(), 'alpha', 'the storage is restricted to nodes that know each other');
    ok(reads('fast', $volname, 0x10, 0, $MIB), 'it has what was written');
    deactivate();
    is(registered(), '', 'let go');
    is(shown('fast', $volname), undef, 'nothing is kept that another node could change unseen');
};

set_nodes(qw(alpha beta gamma));

subtest 'a live migration' => sub {
    on('alpha');
    activate();
    is(registered(), 'alpha', 'attached, although gamma is down');
    put('fast', $volname, 0x11, 0, $MIB);
    my $source = client('fast', $volname);

    on('beta');
    dies_like(\&activate, qr/is attached on node 'alpha'/, 'it is not started elsewhere meanwhile');
    is(registered(), 'alpha', 'which changes nothing');
    $ENV{PVE_MIGRATED_FROM} = 'alpha';
    activate();
    is(registered(), 'alpha beta', 'attached at the destination');
    is(state(), 'waiting', 'where it waits for its VM');
    deactivate();
    is(registered(), 'alpha', 'called off');
    on('alpha');
    ok(reads('fast', $volname, 0x11, 0, $MIB), 'the VM goes on where it is');

    on('beta');
    activate();
    my $destination = client('fast', $volname);
    ok(reads('fast', $volname, 0x11, 0, 65536), 'QEMU reads at the destination what the source has');
    on('alpha');
    put('fast', $volname, 0x22, $MIB, $MIB);
    undef $source;
    on('beta');
    ok(put('fast', $volname, 0x33, 2 * $MIB, $MIB), 'the VM writes at the destination');
    like(state(), qr/^(?:arriving|here)$/, 'which has it');
    delete $ENV{PVE_MIGRATED_FROM};
    activate();

    on('alpha');
    deactivate();
    is(registered(), 'beta', 'the source lets go');
    is(shown('fast', $volname), undef, 'and has nothing of it any more');
    dies_like(\&release, qr/is attached on node 'beta'/, 'it removes no volume that another node has');
    dies_like(
        sub { $PLUGIN->volume_snapshot_rollback(storage('fast'), 'fast', $volname, 'monday') },
        qr/is attached on node 'beta'/, 'nor does it roll one back',
    );
    on('beta');
    ok(reads('fast', $volname, 0x11, 0, $MIB), 'the destination has what was written first');
    ok(reads('fast', $volname, 0x22, $MIB, $MIB), 'and what was written during the migration');
    undef $destination;
    deactivate();
    is(registered(), '', 'the VM is shut down');
    ok(contents("$volumes/$volname", 0x11 * ($_ + 1), $_ * $MIB, $MIB), "the base has MiB $_") for 0 .. 2;
    on('alpha');
    activate();
    ok(reads('fast', $volname, 0x33, 2 * $MIB, $MIB), 'and started where it was first');
    deactivate();
};

subtest 'a volume that was not deactivated' => sub {
    on('alpha');
    activate();
    put('fast', $volname, 0x44, 0, $MIB);
    on('beta');
    dies_like(\&activate, qr/run 'haversack disk detach \Q$name\E'/, 'another node says what to do');
    on('alpha');
    deactivate();
    on('beta');
    activate();
    ok(reads('fast', $volname, 0x44, 0, $MIB), 'and gets it');
    put('fast', $volname, 0x55, 0, $MIB);
    deactivate();
};

subtest 'a node that is down' => sub {
    on('beta');
    mark('gamma');
    my $help = qr/node 'gamma', which is not connected.*--from gamma.*disk own \Q$name\E/s;
    dies_like(\&activate, $help, 'may have the newest data');
    dies_like(\&release, qr/is attached on node 'gamma'/, 'and its volume is not removed');
    unlink("$register/$name\@gamma");
    activate();
    ok(reads('fast', $volname, 0x55, 0, $MIB), 'otherwise it is in nobody\'s way');
    deactivate();
    my ($pool) = storage('fast')->{'haversack-pool'} =~ m/^(.+)$/;
    haversack('fast', 'disk', 'attach', $name, "$volumes/$volname", '--pool', $pool, '--from', 'none');
    is(registered(), '', 'attached by hand');
    activate();
    is(registered(), 'beta', 'it is registered when its VM starts');
    release();
    ok(!-e "$volumes/$volname", 'removed');
    is(registered(), '', 'and registered nowhere');
};

done_testing();
