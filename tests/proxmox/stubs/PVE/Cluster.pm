package PVE::Cluster;

# A stand-in for Proxmox's module. The test says which nodes there are.

use strict;
use warnings;

our @NODES = ('alpha');

sub get_nodelist {
    return [@NODES];
}

1;
