//! A whole process, which is confined before it has threads. The test has no harness: that would run it in a thread.

use std::path::Path;

use haversack_sandbox::{Access, Rules, confine};

fn main() {
    let mut rules = Rules::default();
    rules.allow(Path::new("/proc"), Access::Read).unwrap();
    let confined = confine(&[&rules], false).expect("the tests need a kernel with Landlock");
    assert!(confined.version >= 1);
    assert_eq!(confined.unrestricted.is_empty(), confined.version >= 6);
    assert!(std::fs::read_dir("/etc").is_err());
    let later =
        std::thread::spawn(|| std::fs::read("/proc/self/stat").is_ok() && std::fs::read_dir("/etc").is_err());
    assert!(later.join().unwrap(), "a thread that was started later is not confined");
    println!("confined by version {}", confined.version);
}
