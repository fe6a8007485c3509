//! CloudPhysics traces as the Cydonia tools store them: `time,address,operation,size`, one file per VM.
//!
//! Time is in microseconds, the address in sectors of 512 bytes, the operation r or w, the size in bytes.
//!
//! Source: repository pbhandar2/Cydonia, `cydonia/profiler/CPReader.py`.

use super::{SECTOR_BYTES, access};
use crate::access::Access;
use crate::fields::Fields;
use crate::text::{Expected, LineParser};
use crate::volumes::Volumes;

const EXPECTED: Expected = "time_us,sector,r/w,bytes (Cydonia)";

pub(crate) struct Cydonia {
    name: String,
}

impl Cydonia {
    /// The file is one volume.
    pub fn new(name: String) -> Self {
        Cydonia { name }
    }

    fn access(&self, line: &[u8], volumes: &mut Volumes) -> Option<Access> {
        let mut fields = Fields::new(line, b',');
        let (time_ns, offset) = (fields.time(1000)?, fields.number()?.checked_mul(SECTOR_BYTES)?);
        let (op, length) = (fields.op()?, fields.number()?);
        let volume = volumes.only(&self.name);
        fields.rest().is_none().then(|| access(time_ns, volume, op, offset, length))?
    }
}

impl LineParser for Cydonia {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes, into: &mut Vec<Access>) -> Result<(), Expected> {
        into.push(self.access(line, volumes).ok_or(EXPECTED)?);
        Ok(())
    }
}
