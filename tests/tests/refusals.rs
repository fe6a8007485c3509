//! What `haversackd` refuses, and how it says so.

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::{Error, Place, Result, image, test};

/// A daemon on these settings must not start, and must say all of `words`.
fn refused(place: &Place, settings: Settings, words: &[&str]) -> Result<()> {
    match Haversack::start(place, settings) {
        Ok(_) => Err(Error::Check(format!("haversackd has started; it was to complain of {words:?}"))),
        Err(error) => {
            let text = error.to_string();
            let missing = words.iter().find(|word| !text.contains(**word));
            missing.map_or(Ok(()), |word| Err(Error::Check(format!("{word:?} is not in: {text}"))))
        }
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    test("unknown key", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        settings.more = "colour = \"blue\"\n".to_owned();
        let line = settings
            .text(place, "run")
            .lines()
            .position(|line| line.starts_with("colour"))
            .map_or(0, |at| at + 1);
        refused(place, settings, &["colour", &line.to_string()])
    });
}

#[test]
fn a_pool_in_use_is_refused() {
    test("pool in use", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        let first = Haversack::start(place, settings)?;
        let complaint = first.second_daemon()?;
        check(complaint.contains("cache.img"), format!("the device is not named: {complaint}"))?;
        first.command(&["disk", "show", "vm1"]).map(|_| ())
    });
}
