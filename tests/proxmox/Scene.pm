package Scene;

# What the tests of the Proxmox plug-in share: its modules beside stand-ins of Proxmox's own, storages that are directories, and
# NBD clients of the daemons that the environment names.
#
# HAVERSACK_PROGRAMS   directory of haversack
# SCENE_DIRECTORY      an empty directory
# SCENE_ALPHA          node alpha's daemon: the directory of its sockets, a colon, its pool
# SCENE_BETA           the same of node beta

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IO::Socket::UNIX;
use JSON::PP ();
use Test::More;

use base qw(Exporter);
our @EXPORT = qw(
    $PLUGIN client configure contents directory dies_like haversack node put qemu_io reads shown storage
);

our $PLUGIN = 'PVE::Storage::Custom::HaversackPlugin';

# Taken from the environment, so not trusted by -T until they are captured.
my sub variable {
    my ($name) = @_;
    ($ENV{$name} // '') =~ m/^(.+)$/ or die "the environment has no $name\n";
    return $1;
}

my ($sources) = abs_path(dirname(__FILE__) . '/../..') =~ m{^(/.+)$};
my ($scratch, $programs) = (variable('SCENE_DIRECTORY'), variable('HAVERSACK_PROGRAMS'));

sub directory {
    return $scratch;
}

# The plug-in where Proxmox finds it.
BEGIN {
    delete @ENV{qw(IFS CDPATH ENV BASH_ENV)};
    $ENV{PATH} = '/usr/bin:/bin';
}
mkdir("$scratch/$_") for qw(lib lib/PVE lib/PVE/Storage register);
symlink("$sources/packaging/proxmox", "$scratch/lib/PVE/Storage/Custom");
unshift @INC, "$scratch/lib", "$sources/tests/proxmox/stubs";
# For the perl that takes a snapshot.
$ENV{PERL5LIB} = join(':', "$scratch/lib", "$sources/tests/proxmox/stubs");
$ENV{STORAGE_CFG} = "$scratch/storage.json";
require PVE::Storage;
require PVE::Storage::Custom::HaversackPlugin;
$PLUGIN->register();
{
    no warnings 'once';
    $PVE::Storage::Custom::Haversack::Disk::PROGRAM = "$programs/haversack";
    $PVE::Storage::Custom::Haversack::Disk::REGISTER = "$scratch/register";
}

# Writes the storages' configuration.
sub configure {
    my (%ids) = @_;
    open(my $file, '>', "$scratch/storage.json") or die "storage.json: $!\n";
    print $file JSON::PP::encode_json({ ids => \%ids });
    close($file) or die "storage.json: $!\n";
    return;
}

sub storage {
    my ($id) = @_;
    return PVE::Storage::storage_config(PVE::Storage::config(), $id);
}

# From now on, the plug-in is on this node. Returns what storages there need.
sub node {
    my ($name) = @_;
    my ($run, $pool) = split(/:/, variable('SCENE_' . uc($name)));
    $PVE::INotify::NODE = $name;
    return ('haversack-control' => "$run/control.sock", 'haversack-nbd' => "$run/nbd.sock", 'haversack-pool' => $pool);
}

# Runs `haversack` with the daemon of a storage.
sub haversack {
    my ($id, @arguments) = @_;
    my ($socket) = storage($id)->{'haversack-control'} =~ m/^(.+)$/;
    my $out = '';
    PVE::Tools::run_command(
        ["$programs/haversack", '--json', '--socket', $socket, @arguments],
        outfunc => sub { $out .= $_[0] },
        errfunc => sub { diag($_[0]) },
    );
    return $out eq '' ? undef : JSON::PP::decode_json($out);
}

# What the daemon knows of a volume's disk; undef if nothing.
sub shown {
    my ($id, $volname) = @_;
    my $name = $PLUGIN->qemu_blockdev_options(storage($id), $id, $volname, '10.0', {})->{export};
    return (grep { $_->{name} eq $name } @{ haversack($id, 'disk', 'list') })[0];
}

# What QEMU would open.
my sub image {
    my ($id, $volname) = @_;
    my $options = $PLUGIN->qemu_blockdev_options(storage($id), $id, $volname, '10.0', {});
    my ($json) = JSON::PP::encode_json({ driver => 'raw', file => $options }) =~ m/^(.+)$/;
    return "json:$json";
}

sub qemu_io {
    my ($id, $volname, @commands) = @_;
    my ($said, $image) = ('', image($id, $volname));
    my $keep = sub { $said .= "$_[0]\n" };
    my @arguments = map { ('-c', $_) } @commands;
    my $code = PVE::Tools::run_command(['qemu-io', @arguments, $image], noerr => 1, outfunc => $keep, errfunc => $keep);
    diag($said) if $code || $said =~ m/failed/;
    return $code == 0 && $said !~ m/failed/;
}

# Writes a pattern: `$count` bytes `$byte` at `$offset`.
sub put {
    my ($id, $volname, $byte, $offset, $count) = @_;
    return qemu_io($id, $volname, "write -P $byte $offset $count", 'flush');
}

sub reads {
    my ($id, $volname, $byte, $offset, $count) = @_;
    return qemu_io($id, $volname, "read -P $byte $offset $count");
}

# Whether a file has the byte `$byte` everywhere in a range.
sub contents {
    my ($path, $byte, $offset, $count) = @_;
    open(my $file, '<:raw', $path) or die "$path: $!\n";
    seek($file, $offset, 0);
    my $length = read($file, my $bytes, $count);
    return $length == $count && $bytes eq chr($byte) x $count;
}

# An NBD client that stays connected, as QEMU does, until the value returned is dropped.
sub client {
    my ($id, $volname) = @_;
    my $options = $PLUGIN->qemu_blockdev_options(storage($id), $id, $volname, '10.0', {});
    my $client = IO::Socket::UNIX->new(Peer => $options->{server}->{path}) or die "no NBD server: $!\n";
    read($client, my $greeting, 18) == 18 or die "no greeting\n";
    # Fixed newstyle without zeroes, then EXPORT_NAME.
    print $client pack('N a8 N N/a*', 3, 'IHAVEOPT', 1, $options->{export});
    $client->flush();
    read($client, my $export, 10) == 10 or die "no such export\n";
    return $client;
}

sub dies_like {
    my ($what, $pattern, $name) = @_;
    my $lived = eval { $what->(); 1 };
    return ok(0, "$name: it did not fail") if $lived;
    return like($@, $pattern, $name);
}

1;
