package PVE::Storage::Custom::Haversack::Disk;

# A disk of haversackd, for HaversackPlugin.pm: attaching and detaching it with `haversack`, and the register of the nodes that
# have it. It is in a directory of its own because Proxmox takes each file beside the plug-in for another plug-in.

use strict;
use warnings;

use Fcntl qw(O_CREAT O_WRONLY);
use JSON::PP ();
use Time::HiRes ();

use PVE::Cluster;
use PVE::INotify;
use PVE::Tools qw(run_command);

# How long an answer of the daemon may take. Jobs such as a detach may take as long as there is data to write.
use constant ANSWER_SECONDS => 60;
# How long to wait for the end of a client that is closing, and for a disk that is on its way.
use constant CLOSING_SECONDS => 10;
use constant SETTLING_SECONDS => 60;

our $PROGRAM = '/usr/bin/haversack';
our $CONTROL_SOCKET = '/run/haversack/control.sock';
our $NBD_SOCKET = '/run/haversack/nbd.sock';
# On Proxmox's cluster file system: all nodes see the same, and without quorum nobody writes.
our $REGISTER = '/etc/pve/priv/haversack';

# Settings

# `scfg` is the configuration of its storage, `name` its name. To attach it, `origin` and `size` are needed as well: a path, and
# a function that returns the size of the volume there.
sub new {
    my ($class, %disk) = @_;
    return bless({%disk}, $class);
}

# A setting that becomes an argument. Captured, because Proxmox's daemons run with -T.
my sub setting {
    my ($scfg, $key, $default, $pattern) = @_;
    my $value = $scfg->{$key} // $default;
    die "$key: '$value' is not valid\n" if $value !~ m{^($pattern)$};
    return $1;
}

sub control_socket {
    my ($disk) = @_;
    return setting($disk->{scfg}, 'haversack-control', $CONTROL_SOCKET, qr{/[^\s;()?&#]+});
}

sub nbd_socket {
    my ($disk) = @_;
    return setting($disk->{scfg}, 'haversack-nbd', $NBD_SOCKET, qr{/[^\s;()?&#]+});
}

my sub pool {
    my ($disk) = @_;
    return setting($disk->{scfg}, 'haversack-pool', 'main', qr/[A-Za-z0-9_][A-Za-z0-9._-]*/);
}

# Other nodes that can use the storage; none if it is not shared.
my sub other_nodes {
    my ($disk) = @_;
    my $scfg = $disk->{scfg};
    return () if !$scfg->{shared};
    my @nodes = $scfg->{nodes} ? keys %{ $scfg->{nodes} } : @{ PVE::Cluster::get_nodelist() };
    my $me = PVE::INotify::nodename();
    my @others = sort grep { $_ ne $me } @nodes;
    return @others;
}

# The daemon

# The last JSON object of an error output, which other lines may be in.
my sub parse_error {
    my ($status, $text) = @_;
    for my $line (reverse split(/\n/, $text)) {
        my $error = $line =~ m/^\{/ ? eval { JSON::PP::decode_json($line) } : undef;
        return $error if $error && $error->{code};
    }
    return { code => 'failed', error => $text =~ m/\S/ ? $text : "exit code $status" };
}

my sub say_error {
    my ($error) = @_;
    my $text = join('; ', grep { defined($_) && $_ ne '' } $error->{error}, $error->{hint});
    chomp($text);
    return $text;
}

# Runs `haversack`. Returns what it printed and, if it failed, its error. `said` refers to where its error output is to be put.
my sub call {
    my ($disk, $arguments, %options) = @_;
    my @command = ($PROGRAM, '--json', '--socket', $disk->control_socket(), '--timeout', ANSWER_SECONDS . 's', @$arguments);
    my ($out, $err) = ('', '');
    my $status = run_command(
        \@command,
        noerr => 1,
        quiet => 1,
        outfunc => sub { $out .= "$_[0]\n" },
        errfunc => sub { $err .= "$_[0]\n" },
        $options{is_job} ? () : (timeout => 2 * ANSWER_SECONDS),
    );
    ${ $options{said} } = $err if $options{said};
    return (undef, parse_error($status, $err)) if $status;
    return (eval { JSON::PP::decode_json($out) }, undef);
}

# The same of a command that must not fail.
my sub must {
    my ($disk, $arguments, %options) = @_;
    my ($answer, $error) = call($disk, $arguments, %options);
    die "haversack $arguments->[0] $arguments->[1]: " . say_error($error) . "\n" if $error;
    return $answer;
}

# What the daemon knows of a disk; undef if it has never seen it.
my sub show {
    my ($disk) = @_;
    my ($shown, $error) = call($disk, ['disk', 'show', $disk->{name}]);
    return $shown if !$error;
    return undef if $error->{code} eq 'not-found';
    die "disk '$disk->{name}': " . say_error($error) . "\n";
}

# The same, once it is neither being attached nor detached.
sub settled {
    my ($disk) = @_;
    my $end = time() + SETTLING_SECONDS;
    while (1) {
        my $shown = show($disk);
        return $shown if !$shown || $shown->{state} !~ m/^(?:attaching|detaching)$/;
        die "disk '$disk->{name}' has been $shown->{state} for " . SETTLING_SECONDS . " s: see 'haversack disk show'\n"
            if time() > $end;
        Time::HiRes::sleep(0.2);
    }
}

# Whether the daemon has a disk attached, or will have once it can.
my sub is_there {
    my ($shown) = @_;
    return $shown && $shown->{state} ne 'detached';
}

# Where a disk is that moves between nodes (here, waiting, leaving, away, ...), and the other host; nothing of one that does not.
my sub whereabouts {
    my ($disk) = @_;
    my ($status, $error) = call($disk, ['migrate', 'status', $disk->{name}]);
    die "disk '$disk->{name}': " . say_error($error) . "\n" if $error && $error->{code} !~ m/^(?:conflict|not-found)$/;
    return $status ? ($status->{state}, $status->{host}) : ();
}

# The states of a disk that this node has.
my $OURS = qr/^(?:here|sending|arriving)$/;

# Writes to the origin what is dirty now, of a disk that is attached.
sub flush {
    my ($disk) = @_;
    must($disk, ['disk', 'flush', $disk->{name}], is_job => 1) if is_there($disk->settled());
    return;
}

# Runs a command while the origin has everything that was written.
sub quiesce {
    my ($disk, @command) = @_;
    my $said = '';
    my (undef, $error) = call($disk, ['disk', 'quiesce', $disk->{name}, '--', @command], is_job => 1, said => \$said);
    return if !$error;
    # Of an error of the command itself, it says only that there was one.
    my @lines = grep { !m/^\{/ } split(/\n/, $said);
    die join("\n", @lines, "disk '$disk->{name}' was not quiesced: " . say_error($error)) . "\n";
}

# The register

my sub entry {
    my ($disk, $node) = @_;
    return "$REGISTER/$disk->{name}\@$node";
}

my sub register {
    my ($disk) = @_;
    mkdir($REGISTER);
    my $entry = entry($disk, PVE::INotify::nodename());
    sysopen(my $file, $entry, O_CREAT | O_WRONLY, 0600)
        or die "cannot register disk '$disk->{name}': $entry: $!; does the cluster have quorum?\n";
    close($file);
    return;
}

my sub unregister {
    my ($disk) = @_;
    my $entry = entry($disk, PVE::INotify::nodename());
    unlink($entry) || $!{ENOENT} || warn "cannot remove $entry: $!\n";
    return;
}

# The other nodes that have the disk attached, or have something of it.
my sub holders {
    my ($disk) = @_;
    return grep { -e entry($disk, $_) } other_nodes($disk);
}

# Dies if another node has the disk.
sub check_no_holder {
    my ($disk) = @_;
    my ($node) = holders($disk);
    return if !defined($node);
    my $name = $disk->{name};
    die "disk '$name' is attached on node '$node'. If its VM is not there, run 'haversack disk detach $name' and"
        . " 'haversack disk forget $name' on that node, and remove " . entry($disk, $node) . "\n";
}

# Attaching

# The node that the disk's VM comes from by live migration. Proxmox tells its programs so when it starts the VM here.
my sub migrated_from {
    return $ENV{PVE_MIGRATED_FROM} // '';
}

# The other hosts that the daemon knows, by their names.
my sub hosts {
    my ($disk) = @_;
    return { map { lc($_->{name}) => $_ } @{ must($disk, ['host', 'list']) } };
}

# Dies unless all nodes know each other, and no node has the disk except the one that its VM comes from.
my sub check_nodes {
    my ($disk, $hosts) = @_;
    my ($missing) = grep { !$hosts->{ lc($_) } } other_nodes($disk);
    die "node '$missing' can use the storage, too, and haversackd does not know it: add it as [[host]], or restrict the"
        . " storage to some nodes ('nodes' in storage.cfg)\n"
        if defined($missing);
    my ($away) = grep { !$hosts->{ lc($_) }->{is_connected} } holders($disk);
    if (defined($away)) {
        my $attach = "haversack disk attach $disk->{name} $disk->{origin} --pool " . pool($disk) . " --from $away";
        die "disk '$disk->{name}' is attached on node '$away', which is not connected and may have data that nobody else has:"
            . " start that node. If it is permanently dead, run '$attach' and 'haversack disk own $disk->{name}', and remove "
            . entry($disk, $away) . "\n";
    }
    check_no_holder($disk) if grep { $_ ne migrated_from() } holders($disk);
    return;
}

# Tells the daemon which host has the disk. Without that it asks all hosts, and one that is down would be in the way.
my sub from_arguments {
    my ($disk, $hosts) = @_;
    return %$hosts ? ('--from', (holders($disk))[0] // 'none') : ();
}

# A disk whose volume was enlarged while it was detached gets its new size.
my sub size_arguments {
    my ($disk, $shown) = @_;
    my $size = $shown ? $disk->{size}->() : undef;
    return $size && $size =~ m/^(\d+)$/ && $1 > $shown->{size_bytes} ? ('--size', $1) : ();
}

# Returns whether the disk is attached already; dies if it is another one or cannot be used.
my sub is_attached {
    my ($disk, $shown) = @_;
    return 0 if !is_there($shown);
    my $has = $shown->{config} ? $shown->{config}->{origin} : '?';
    die "disk '$disk->{name}' is attached with another origin, '$has' instead of '$disk->{origin}': detach it\n"
        if $has ne $disk->{origin};
    die "disk '$disk->{name}' is $shown->{state}: " . ($shown->{error} // "see 'haversack disk show'") . "\n"
        if $shown->{state} ne 'attached';
    return 1;
}

# Once a disk of several nodes is attached: they must agree on who has it. That is this node, or its VM is about to come.
my sub check_moves {
    my ($disk) = @_;
    my ($state, $host) = whereabouts($disk);
    if (!defined($state)) {
        must($disk, ['disk', 'detach', $disk->{name}], is_job => 1);
        die "disk '$disk->{name}' does not move between nodes, and its storage is shared: see 'haversack host list'\n";
    }
    return if $state =~ $OURS;
    die "disk '$disk->{name}' is $state: host '" . ($host // '?') . "' has it; see 'haversack migrate status'\n"
        if migrated_from() eq '' || $state eq 'overtaken';
    my (undef, $error) = call($disk, ['migrate', 'expect', '--', $disk->{name}]);
    warn "disk '$disk->{name}': its cache is not sent ahead: " . say_error($error) . "\n" if $error;
    return;
}

# Has the daemon attach a disk that it does not have.
my sub attach_disk {
    my ($disk, $shown, $hosts) = @_;
    my @arguments = ($disk->{name}, $disk->{origin}, '--pool', pool($disk));
    push @arguments, '--mode', setting($disk->{scfg}, 'haversack-mode', 'wb', qr/[a-z-]+/);
    push @arguments, from_arguments($disk, $hosts), size_arguments($disk, $shown);
    my (undef, $error) = call($disk, ['disk', 'attach', @arguments], is_job => 1);
    # If it fails, somebody else may have attached it in the meantime.
    return if !$error || is_attached($disk, $disk->settled());
    unregister($disk) if !show($disk);
    die "disk '$disk->{name}' cannot be attached: " . say_error($error) . "\n";
}

# Attaches a disk, unless it is attached already.
sub attach {
    my ($disk) = @_;
    my $shown = $disk->settled();
    my $is_attached = is_attached($disk, $shown);
    my $is_shared = other_nodes($disk);
    my $is_ours = $is_attached && (!$is_shared || ((whereabouts($disk))[0] // '') =~ $OURS);
    my $hosts = $is_ours ? {} : hosts($disk);
    check_nodes($disk, $hosts) if $is_shared && !$is_ours;
    # Also if somebody has attached it by hand, to take it over from a node that is dead.
    register($disk) if $is_shared;
    return if $is_ours;
    attach_disk($disk, $shown, $hosts) if !$is_attached;
    check_moves($disk) if $is_shared;
    return;
}

# Detaching

# Drops what is cached of a detached disk, and where it was. Dirty data is destroyed only if that is wanted.
sub forget {
    my ($disk, %options) = @_;
    my @confirm = $options{destroy} ? ('--confirm', $disk->{name}) : ();
    return if !show($disk);
    my (undef, $error) = call($disk, ['disk', 'forget', $disk->{name}, @confirm], is_job => 1);
    return if !$error || $error->{code} eq 'not-found';
    die "disk '$disk->{name}' is detached, and the rest of it is still cached here: " . say_error($error) . "\n";
}

# Blocks that the VM's new node still needs must not be forgotten here.
my sub wait_until_left {
    my ($disk) = @_;
    my $end = time() + SETTLING_SECONDS;
    while (time() < $end) {
        my ($state) = whereabouts($disk);
        last if ($state // '') ne 'leaving';
        Time::HiRes::sleep(0.2);
    }
    return;
}

# Writes everything back and detaches the disk. If other nodes could change its volume unseen, nothing of it is kept.
sub detach {
    my ($disk, %options) = @_;
    my $is_shared = other_nodes($disk);
    my $end = time() + CLOSING_SECONDS;
    while (is_there($disk->settled())) {
        wait_until_left($disk) if $is_shared;
        my (undef, $error) = call($disk, ['disk', 'detach', $disk->{name}], is_job => 1);
        last if !$error;
        # A client that has just ended may still be listed.
        die "disk '$disk->{name}' cannot be detached: " . say_error($error) . "\n"
            if $error->{code} ne 'in-use' || time() > $end;
        Time::HiRes::sleep(0.2);
    }
    return if !$is_shared;
    $disk->forget(%options);
    unregister($disk);
    return;
}

# For operations that change or remove the volume itself: no node has the disk attached, and nothing of it is cached.
sub release {
    my ($disk, %options) = @_;
    $disk->check_no_holder();
    $disk->detach(%options);
    $disk->forget(%options);
    return;
}

1;
