//! What the program says where it cannot serve a device, which is everywhere without the driver.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_haversack-ublk")).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn wrong_arguments_end_with_2() {
    for (arguments, words) in [
        (&["nbd://host/vm1"][..], "expected nbd+unix:///EXPORT?socket=PATH"),
        (&["nbds+unix:///vm1?socket=/s"], "without TLS"),
        (&["nbd+unix:///vm1"], "no socket"),
        (&["--queues", "0", "nbd+unix:///vm1?socket=/s"], "0 is not in 1..=64"),
        (&["--remove"], "--id"),
        (&[], "NBD-URI"),
    ] {
        let (code, text) = run(arguments);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
}

#[test]
fn a_missing_driver_is_named() {
    if std::path::Path::new("/dev/ublk-control").exists() {
        return;
    }
    let (code, text) = run(&["--wait", "0", "nbd+unix:///vm1?socket=/no/such/socket"]);
    assert_eq!(code, Some(1));
    assert!(text.starts_with("haversack-ublk: /dev/ublk-control: No such file"), "{text}");
    assert!(text.contains("modprobe ublk_drv"), "{text}");
}
