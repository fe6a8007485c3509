//! Everything may enter at its first access.

use haversack_model::BlockNo;

use crate::{Admission, Admit, Op, Verdict};

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Always;

impl Admission for Always {
    fn hit(&mut self, _: BlockNo, _: Op) {}

    fn miss(&mut self, _: BlockNo, _: Op) -> Verdict {
        Verdict { admit: true, ..Verdict::default() }
    }

    fn resize(&mut self, _: &Admit, _: &mut dyn FnMut(BlockNo)) {}

    fn bytes(&self) -> usize {
        0
    }
}
