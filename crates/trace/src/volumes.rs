//! The volumes of a trace, by the value that identifies them in its lines or records.

use std::collections::HashMap;

use crate::access::VolumeNo;

/// Numbers volumes in the order in which they appear.
#[derive(Default)]
pub(crate) struct Volumes {
    names: Vec<String>,
    by_key: HashMap<Vec<u8>, VolumeNo>,
    /// Neighbouring accesses often go to the same volume.
    last: (Vec<u8>, VolumeNo),
}

impl Volumes {
    /// Returns the number of the volume that `key` stands for; `name` is called once per volume.
    pub fn number(&mut self, key: &[u8], name: impl FnOnce() -> String) -> VolumeNo {
        if self.last.0 == key && !self.names.is_empty() {
            return self.last.1;
        }
        let number = match self.by_key.get(key) {
            Some(number) => *number,
            None => {
                let number = VolumeNo(self.names.len() as u32);
                self.names.push(name());
                self.by_key.insert(key.to_vec(), number);
                number
            }
        };
        self.last.0.clear();
        self.last.0.extend_from_slice(key);
        self.last.1 = number;
        number
    }

    /// Returns the number of the volume with that name.
    pub fn named(&mut self, name: &[u8]) -> VolumeNo {
        self.number(name, || String::from_utf8_lossy(name).into_owned())
    }

    /// Returns the number of the only volume of a trace without names.
    pub fn only(&mut self, name: &str) -> VolumeNo {
        if self.names.is_empty() {
            self.names.push(name.to_string());
        }
        VolumeNo(0)
    }

    /// Returns the names, indexed by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}
