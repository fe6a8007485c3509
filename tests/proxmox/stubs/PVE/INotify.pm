package PVE::INotify;

# A stand-in for Proxmox's module. The test says on which node it is.

use strict;
use warnings;

our $NODE = 'alpha';

sub nodename {
    return $NODE;
}

1;
