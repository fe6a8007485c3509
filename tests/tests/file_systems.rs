//! File systems on disks of `haversackd` whose cache is much smaller than the data.

use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{Guest, image, scenario, test};

/// The cache, shared by both disks, in MiB.
const CACHE_MIB: u64 = 32;
/// The files of each file system, in MiB.
const FILES_MIB: u64 = 128;

#[test]
fn ext4_and_xfs_over_a_small_cache() {
    test("file systems over a small cache", |place| {
        let files = [image::zeroes(place, "vm1.img", 320)?, image::zeroes(place, "vm2.img", 320)?];
        let first = Nbdkit::file(place, "origin1", &files[0])?;
        let second = Nbdkit::file(place, "origin2", &files[1])?;
        let disks = vec![Disk::new("vm1", first.uri()), Disk::new("vm2", second.uri())];
        let daemon = Haversack::start(place, Settings::new(CACHE_MIB, disks))?;
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1"), daemon.nbd("vm2")])?;
        scenario::file_system(place, &mut guest, "vda", "ext4", FILES_MIB)?;
        scenario::file_system(place, &mut guest, "vdb", "xfs", FILES_MIB)?;
        guest.off()
    });
}
