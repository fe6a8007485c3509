//! Mistakes with the origins of disks: used through another pool, under another name or identity, or modified in
//! between. No guest reads older data than its origin has.

use std::path::{Path, PathBuf};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack};
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Error, Place, Result, image, test, tools};

use crate::membership::{BLOCKS, read_back, start, write};

/// Waits until a disk waits to be attached, and checks why.
fn is_refused(daemon: &Haversack, disk: &str, words: &[&str]) -> Result<()> {
    let mut shown = serde_json::Value::Null;
    tools::wait_until("the refusal", PATIENCE, || {
        shown = daemon.json(&["disk", "show", disk])?;
        Ok(shown["state"] != "attaching")
    })?;
    let error = shown["error"].as_str().unwrap_or_default();
    check(
        shown["state"] == "waiting" && words.iter().all(|word| error.contains(word)),
        format!("{disk}: {shown}"),
    )
}

/// A disk that was renamed does not read the origin past its own dirty blocks.
#[test]
fn a_renamed_disk_does_not_lose_its_dirty_blocks() {
    test("a disk renamed in the configuration", |place| {
        let mut daemon = start(place, &["one.img"], false)?;
        write(&daemon, 14)?;
        let id = daemon.json(&["disk", "show", "vm1"])?["id"].as_str().unwrap_or_default().to_owned();
        daemon.kill()?;
        let before = daemon.settings().disks[0].clone();
        let renamed = Disk { name: "db1".into(), ..before.clone() };
        daemon.settings().disks[0] = renamed.clone().unattachable();
        daemon.start_again()?;
        let words = ["dirty bytes of", "of disk 'vm1'", id.as_str()];
        is_refused(&daemon, "db1", &words)?;
        daemon.kill()?;
        place.say("nor if another disk has its former name");
        let other = image::zeroes(place, "other.img", 64)?.display().to_string();
        daemon.settings().disks.push(Disk { origin: other, ..before }.unattachable());
        daemon.start_again()?;
        is_refused(&daemon, "vm1", &["of another origin"])?;
        is_refused(&daemon, "db1", &words)?;
        daemon.kill()?;
        daemon.settings().disks.truncate(1);
        place.say("with its id it is the same disk");
        daemon.settings().disks[0] = renamed.with(&format!("id = \"{id}\""));
        daemon.start_again()?;
        let mut client = Connection::open(&daemon.socket("nbd.sock"), "db1")?;
        let mut data = [0; 4096];
        client.ask(Command::Read, 0, 4096, &mut data)?;
        check(data == [14; 4096], "the dirty blocks are gone")
    });
}

/// A second disk, in a pool that the configuration names besides the first.
struct Second<'a> {
    daemon: Haversack<'a>,
    image: PathBuf,
}

impl Second<'_> {
    fn pool(name: &str, device: &Path) -> String {
        format!("\n[[pool]]\nname = \"{name}\"\ndevices = [{device:?}]\nstaging = \"1MiB\"\n")
    }

    /// Disables automatic cleaning. After a restart of the daemon, blocks count as dirty since the machine was started,
    /// so the times must be longer than any uptime.
    fn disk(&self, pool: &str) -> String {
        format!(
            "\n[[disk]]\nname = \"vm2\"\npool = \"{pool}\"\norigin = {:?}\nmode = \"wb\"\n\
             cleaner = {{ idle = \"10000h\", age = \"10000h\" }}\n",
            self.image
        )
    }

    /// Kills the daemon and starts it with more configuration.
    fn restart(&mut self, more: &str) -> Result<()> {
        self.daemon.kill()?;
        self.daemon.settings().more = more.to_owned();
        self.daemon.start_again()
    }

    fn is_attached(&self, name: &str) -> Result<()> {
        tools::wait_until(name, PATIENCE, || {
            Ok(self.daemon.json(&["disk", "show", name])?["state"] == "attached")
        })
    }

    fn write(&self, value: u8) -> Result<()> {
        self.write_to("vm2", value)
    }

    fn write_to(&self, name: &str, value: u8) -> Result<()> {
        self.is_attached(name)?;
        let mut client = Connection::open(&self.daemon.socket("nbd.sock"), name)?;
        client.ask(Command::Write, 0, 4096, &mut [value; 4096])?;
        client.ask(Command::Flush, 0, 0, &mut [])
    }

    fn reads(&self, value: u8) -> Result<()> {
        self.is_attached("vm2")?;
        let mut data = [0; 4096];
        let mut client = Connection::open(&self.daemon.socket("nbd.sock"), "vm2")?;
        client.ask(Command::Read, 0, 4096, &mut data)?;
        check(data == [value; 4096], format!("block 0 of vm2 is {}, not {value}", data[0]))
    }
}

/// Creates a pool on a file.
fn create(place: &Place, pool: &str, file: &str) -> Result<PathBuf> {
    let device = place.path(file);
    let mut create = tools::own("haversack")?;
    create.args(["pool", "create", pool, "--size", "64M"]).arg(&device);
    tools::run(create)?;
    Ok(device)
}

/// A disk that the configuration now assigns to another pool does not lose its dirty blocks either, whether its former
/// pool is open or not.
#[test]
fn a_disk_in_another_pool_does_not_lose_its_dirty_blocks() {
    test("a disk in another pool", |place| {
        let (daemon, image) = (start(place, &["one.img"], false)?, image::zeroes(place, "vm2.img", 64)?);
        let (first, second) = (daemon.pool(), format!("{}-second", daemon.pool()));
        let device = create(place, &second, "two.img")?;
        let mut vm2 = Second { daemon, image };
        let [in_first, in_second] = [&first, &second].map(|pool| vm2.disk(pool));
        let pool = Second::pool(&second, &device);
        vm2.restart(&(pool.clone() + &in_second))?;
        vm2.write(15)?;
        vm2.restart(&(pool.clone() + &in_first))?;
        is_refused(&vm2.daemon, "vm2", &[&second, "dirty bytes of", "of disk 'vm2'"])?;
        place.say("refused; now the pool is missing");
        vm2.restart(&in_first)?;
        is_refused(&vm2.daemon, "vm2", &[&second, "which is not open"])?;
        vm2.restart(&in_first.replace("\"vm2\"", "\"db2\""))?;
        is_refused(&vm2.daemon, "db2", &["'vm2'", &second, "which is not open"])?;
        let third = format!("{first}-third");
        for right in [pool + &in_second, Second::pool(&third, &device) + &vm2.disk(&third)] {
            vm2.restart(&right)?;
            vm2.reads(15)?;
        }
        Ok(())
    });
}

/// Which pool may have a disk's dirty blocks is known by the pool's identity, until the disk is detached there or their
/// loss is accepted.
#[test]
fn a_pool_with_dirty_blocks_that_is_not_open_is_remembered() {
    test("a pool that is not open", |place| {
        let (daemon, image) = (start(place, &["one.img"], false)?, image::zeroes(place, "vm2.img", 64)?);
        let (first, second) = (daemon.pool(), format!("{}-second", daemon.pool()));
        let device = create(place, &second, "two.img")?;
        let mut vm2 = Second { daemon, image };
        let [in_first, in_second] = [&first, &second].map(|pool| vm2.disk(pool));
        place.say("both pools know the disk");
        vm2.restart(&in_first)?;
        vm2.write(16)?;
        vm2.daemon.detach("vm2")?;
        vm2.restart(&(Second::pool(&second, &device) + &in_second))?;
        vm2.write(17)?;
        let not_open = [second.as_str(), "which is not open"];
        vm2.restart(&in_first)?;
        is_refused(&vm2.daemon, "vm2", &not_open)?;
        place.say("the user gives up waiting, which does not give up the blocks");
        vm2.daemon.command(&["disk", "detach", "vm2", "--force"])?;
        vm2.restart(&in_first)?;
        is_refused(&vm2.daemon, "vm2", &not_open)?;
        place.say("another pool has the name of that pool");
        let other = create(place, &second, "three.img")?;
        vm2.restart(&(Second::pool(&second, &other) + &in_second))?;
        is_refused(&vm2.daemon, "vm2", &not_open)?;
        vm2.restart(&(Second::pool(&second, &device) + &in_second))?;
        vm2.reads(17)?;
        place.say("the loss is accepted once, for good");
        vm2.restart(&(in_first.clone() + "accept_loss = \"vm2\"\n"))?;
        vm2.reads(16)?;
        vm2.restart(&in_first)?;
        vm2.write(18)?;
        place.say("after that, the blocks given up do not come back, though the other pool forgets the disk");
        vm2.daemon.detach("vm2")?;
        vm2.daemon.command(&["disk", "forget", "vm2"])?;
        vm2.restart(&(Second::pool(&second, &device) + &in_second))?;
        is_refused(&vm2.daemon, "vm2", &["from before", "are dirty"])
    });
}

/// A disk whose writes go to its origin first has nothing to lose in a pool that is gone.
#[test]
fn a_write_through_disk_starts_in_a_new_pool() {
    test("a write-through disk and its closed pool", |place| {
        let (daemon, image) = (start(place, &["one.img"], false)?, image::zeroes(place, "vm2.img", 64)?);
        let (first, second) = (daemon.pool(), format!("{}-second", daemon.pool()));
        let device = create(place, &second, "two.img")?;
        let mut vm2 = Second { daemon, image };
        let [in_first, in_second] = [&first, &second].map(|pool| vm2.disk(pool).replace("\"wb\"", "\"wt\""));
        let with_second = Second::pool(&second, &device) + &in_second;
        vm2.restart(&with_second)?;
        vm2.write(18)?;
        vm2.restart(&in_first)?;
        vm2.reads(18)?;
        place.say("it has, once it was in write-back mode");
        vm2.restart(&with_second)?;
        vm2.is_attached("vm2")?;
        vm2.daemon.command(&["disk", "set", "vm2", "--mode", "wb"])?;
        vm2.write(19)?;
        vm2.restart(&in_first)?;
        is_refused(&vm2.daemon, "vm2", &[&second, "which is not open"])
    });
}

/// Blocks that a pool has of a disk are not read after the disk was written through another pool, or under another
/// identity.
#[test]
fn blocks_from_before_another_use_of_the_origin_are_not_read() {
    test("blocks from before another use", |place| {
        let (daemon, image) = (start(place, &["one.img"], false)?, image::zeroes(place, "vm2.img", 64)?);
        let (first, second) = (daemon.pool(), format!("{}-second", daemon.pool()));
        let device = create(place, &second, "two.img")?;
        let pool = Second::pool(&second, &device);
        let mut vm2 = Second { daemon, image };
        let [in_first, in_second] = [&first, &second].map(|name| pool.clone() + &vm2.disk(name));
        let renamed = in_first.replace("\"vm2\"", "\"db2\"");
        let other_id = in_first.clone() + "id = \"00000000-0000-4000-8000-000000000001\"\n";
        vm2.restart(&in_first)?;
        vm2.write(20)?;
        for (value, how, other, name) in [
            (21, "in another pool", &in_second, "vm2"),
            (22, "under another name", &renamed, "db2"),
            (23, "under another identity", &other_id, "vm2"),
        ] {
            place.say(&format!("written {how}"));
            vm2.daemon.detach("vm2")?;
            vm2.restart(other)?;
            vm2.write_to(name, value)?;
            vm2.daemon.detach(name)?;
            vm2.restart(&in_first)?;
            vm2.reads(value)?;
        }
        let events = vm2.daemon.command(&["events"])?;
        check(events.contains("outdated-dropped"), events)?;
        place.say("written in another pool, which forgot it, while this one was not open");
        vm2.daemon.detach("vm2")?;
        vm2.restart(&in_second)?;
        vm2.write(24)?;
        vm2.daemon.detach("vm2")?;
        vm2.restart(&vm2.disk(&first))?;
        vm2.write(25)?;
        vm2.daemon.detach("vm2")?;
        vm2.daemon.command(&["disk", "forget", "vm2"])?;
        vm2.restart(&in_second)?;
        vm2.reads(25)
    });
}

/// The same if the image was modified while the disk was detached, for example by restoring a backup.
#[test]
fn blocks_from_before_an_image_was_modified_are_not_read() {
    test("an image modified while its disk was detached", |place| {
        let mut daemon = start(place, &["one.img"], false)?;
        let image = daemon.settings().disks[0].origin.clone();
        write(&daemon, 30)?;
        daemon.detach("vm1")?;
        let pool = daemon.pool();
        let attach = ["disk", "attach", "vm1", &image, "--pool", &pool];
        daemon.command(&attach)?;
        let cached_bytes = daemon.json(&["disk", "show", "vm1"])?["usage"]["usage_bytes"].as_u64();
        check(cached_bytes >= Some(BLOCKS * 4096), format!("{cached_bytes:?} bytes of an unchanged image"))?;
        read_back(&daemon, 30)?;
        daemon.detach("vm1")?;
        let size = std::fs::metadata(&image).map_err(Error::io("the image"))?.len();
        std::fs::write(&image, vec![31; size as usize]).map_err(Error::io("the image"))?;
        place.say("an attach that fails does not make the old blocks current");
        let refused = daemon.command(&[&attach[..], &["--vhost-user", "/nowhere/vm1.sock"]].concat());
        check(refused.is_err(), "attached with a socket in no directory")?;
        daemon.command(&attach)?;
        read_back(&daemon, 31)?;
        check(daemon.command(&["events"])?.contains("outdated-dropped"), "no event")?;
        place.say("nor is the disk smaller, though its image is");
        daemon.detach("vm1")?;
        std::fs::write(&image, vec![32; size as usize / 2]).map_err(Error::io("the image"))?;
        check(daemon.command(&attach).is_err(), "attached to an image that is too small")
    });
}
