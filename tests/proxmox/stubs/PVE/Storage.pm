package PVE::Storage;

# A stand-in for Proxmox's module. The configuration is the JSON file that STORAGE_CFG names: {"ids": {ID: {...}}}.

use strict;
use warnings;

use JSON::PP ();

use PVE::Storage::Plugin;
use PVE::Storage::FilesPlugin;

use constant APIVER => 15;
use constant APIAGE => 6;

sub config {
    my ($path) = $ENV{STORAGE_CFG} =~ m{^(/.+)$} or die "no STORAGE_CFG\n";
    open(my $file, '<', $path) or die "$path: $!\n";
    local $/ = undef;
    return JSON::PP::decode_json(<$file>);
}

sub storage_config {
    my ($config, $storeid, $noerr) = @_;
    my $scfg = $config->{ids}->{$storeid};
    die "storage '$storeid' does not exist\n" if !$scfg && !$noerr;
    return $scfg;
}

sub activate_storage {
    my ($config, $storeid, $cache) = @_;
    my $scfg = storage_config($config, $storeid);
    die "storage '$storeid' is disabled\n" if $scfg->{disable};
    my $plugin = PVE::Storage::Plugin->lookup($scfg->{type});
    $plugin->check_connection($storeid, $scfg) or die "storage '$storeid' is not online\n";
    $plugin->activate_storage($storeid, $scfg, $cache);
    return;
}

sub volume_snapshot {
    my ($config, $volid, $snap) = @_;
    my ($storeid, $volname) = $volid =~ m/^([^:]+):(.+)$/ or die "unable to parse volume ID '$volid'\n";
    my $scfg = storage_config($config, $storeid);
    return PVE::Storage::Plugin->lookup($scfg->{type})->volume_snapshot($scfg, $storeid, $volname, $snap);
}

1;
