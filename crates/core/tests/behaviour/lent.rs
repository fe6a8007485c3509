//! Space that is lent to other hosts.

use std::time::Instant;

use haversack_core::{Copied, CoreConfig, DiskConfig, RequestTag};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo};

use crate::common::{Rig, disk_id};

/// Lends space for this many blocks, and stores all of them.
fn lent(rig: &mut Rig, blocks: u64) -> DiskNo {
    let config = DiskConfig::new(disk_id(9), blocks * 8);
    let disk = rig.core().lend_space(0, &config).expect("the disk is not known");
    for block in 0..blocks {
        let tag = RequestTag(1 << 32 | block);
        rig.give_buffer(tag, vec![1; BLOCK_BYTES]);
        let (now, copied) = (rig.now, Copied { mask: 255, reused: false });
        assert_eq!(rig.core().take_copy(now, tag, disk, BlockNo(block), copied), Ok(true));
        rig.run();
    }
    disk
}

/// Prints how long the call takes that ends the largest loan: the arena does nothing else meanwhile.
#[test]
fn all_space_of_the_largest_loan_is_free_afterwards() {
    const BLOCKS: u64 = 1 << 16;
    let mut rig = Rig::new(&[300], false, CoreConfig::default());
    let free = rig.running().free_blocks();
    let disk = lent(&mut rig, BLOCKS);
    assert!(rig.running().free_blocks().0 + BLOCKS <= free.0);
    let (now, begin) = (rig.now, Instant::now());
    let job = rig.core().end_loan(now, disk).expect("it is lent");
    println!("the call took {:?}", begin.elapsed());
    rig.finish(job);
    assert_eq!(rig.running().free_blocks(), free);
}
