package PVE::Tools;

# A stand-in for Proxmox's module: what the plug-in uses of it.

use strict;
use warnings;

use IO::Select;
use IPC::Open3 qw(open3);
use Symbol qw(gensym);

use base qw(Exporter);
our @EXPORT_OK = qw(run_command);

# Reads both pipes to their ends, line by line.
my sub read_lines {
    my ($pipes, $timeout) = @_;
    my $end = defined($timeout) ? time() + $timeout : undef;
    my $select = IO::Select->new(map { $_->{pipe} } @$pipes);
    while ($select->count()) {
        my @ready = $select->can_read(defined($end) ? $end - time() : undef) or die "got timeout\n";
        for my $pipe (grep { my $each = $_; grep { $_ == $each->{pipe} } @ready } @$pipes) {
            if (!sysread($pipe->{pipe}, $pipe->{text}, 65536, length($pipe->{text}))) {
                $select->remove($pipe->{pipe});
                $pipe->{text} .= "\n" if $pipe->{text} ne '' && $pipe->{text} !~ m/\n$/;
            }
            while ($pipe->{text} =~ s/^([^\n]*)\n//) {
                $pipe->{func}->($1) if $pipe->{func};
            }
        }
    }
    return;
}

# Runs a command, an array, without a shell. Returns its exit code with `noerr`, and otherwise dies if that is not 0.
sub run_command {
    my ($command, %options) = @_;
    die "a command that a shell would interpret: $command\n" if ref($command) ne 'ARRAY';
    my $err = gensym();
    my $pid = open3(my $in, my $out, $err, @$command);
    close($in);
    my $pipes = [
        { pipe => $out, text => '', func => $options{outfunc} },
        { pipe => $err, text => '', func => $options{errfunc} },
    ];
    if (!eval { read_lines($pipes, $options{timeout}); 1 }) {
        kill('KILL', $pid);
        waitpid($pid, 0);
        die "command '@$command' failed: $@";
    }
    waitpid($pid, 0);
    my $code = $? & 127 ? 255 : $? >> 8;
    die(($options{errmsg} // "command '@$command' failed") . ": exit code $code\n") if $code && !$options{noerr};
    return $code;
}

1;
