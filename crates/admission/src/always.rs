//! Everything may enter at its first access.

use haversack_model::BlockNo;

use crate::{Access, Admission, Admit, Verdict};

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Always;

impl Admission for Always {
    fn hit(&mut self, _: BlockNo, _: Access) {}

    fn miss(&mut self, _: BlockNo, _: Access) -> Verdict {
        Verdict { admit: true, ..Verdict::default() }
    }

    fn resize(&mut self, _: &Admit, _: &mut dyn FnMut(BlockNo)) {}

    fn bytes(&self) -> usize {
        0
    }
}
