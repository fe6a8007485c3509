//! Guests that switch their write cache off and move: a write that was answered survives a power loss at their new host.

#[path = "../../crates/vhost-user/tests/support/mod.rs"]
mod support;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Result, image, test};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;

use support::Ram;
use support::client::Client;
use support::driver::{self, BUFFERS, Driver};

const BLOCK: u64 = 4096;
/// Where the guest can switch its write cache.
const WRITE_CACHE_AT: u32 = 32;
/// What is written stays in the cache until it is flushed.
const DIRTY: &str = "cleaner = { age = \"10000h\", idle = \"10000h\" }";

/// A guest, and the number that fills each of its blocks.
struct Guest {
    client: Client,
    blocks: Vec<u8>,
}

impl Guest {
    /// Starts on a host, with what it has written before.
    fn start(host: &Haversack<'_>, disk: &str, blocks: Vec<u8>) -> Self {
        let ram = Ram::new();
        let mut client = Client::new(&host.socket(&format!("{disk}.sock")), &ram, 0);
        client.start(vec![Driver::new(&ram, 0, 16)], None);
        Self { client, blocks }
    }

    /// Fills the next block with a number, and returns when that is answered.
    fn write(&mut self, number: u8) -> Result<()> {
        self.client.ram.write(BUFFERS, &[number; BLOCK as usize]);
        let sector = self.blocks.len() as u64 * BLOCK / 512;
        let status = self.client.queues[0].run(driver::WRITE, sector, &[(BUFFERS, BLOCK as u32)]);
        check(status == 0, format!("a write ends with status {status}"))?;
        self.blocks.push(number);
        Ok(())
    }

    fn switch_write_cache(&mut self, on: bool) -> Result<()> {
        let flags = VhostUserConfigFlags::empty();
        let switched = self.client.frontend.set_config(WRITE_CACHE_AT, flags, &[u8::from(on)]);
        switched.map_err(|error| Error::Check(format!("the write cache is not switched: {error}")))
    }

    /// Disconnects. Returns what it has written.
    fn stop(self) -> Vec<u8> {
        self.blocks
    }

    fn verify(&mut self) -> Result<()> {
        for (block, expected) in self.blocks.iter().enumerate() {
            let sector = block as u64 * BLOCK / 512;
            let status = self.client.queues[0].run(driver::READ, sector, &[(BUFFERS, BLOCK as u32)]);
            let found = self.client.ram.bytes(BUFFERS, BLOCK as usize);
            let is_right = status == 0 && found == [*expected; BLOCK as usize];
            check(is_right, format!("block {block} starts with {}, expected {expected}", found[0]))?;
        }
        Ok(())
    }
}

/// Cuts the power of a host: what was in its memory is gone.
fn cut_power(host: &mut Haversack<'_>) -> Result<()> {
    host.kill()?;
    let staging = format!("/dev/shm/haversack-{}", host.pool());
    std::fs::remove_file(&staging).map_err(Error::io(staging))?;
    host.start_again()
}

#[test]
fn a_write_cache_that_is_off_stays_off_on_another_host() {
    test("a write cache moves", |place| {
        let names = ["vm1", "vm2"];
        let mut origins = Vec::new();
        for name in names {
            let file = image::zeroes(place, &format!("{name}.img"), 16)?;
            origins.push(Nbdkit::file(place, &format!("origin-{name}"), &file)?);
        }
        let disks = |line: &str| -> Vec<Disk> {
            let disk = |(name, origin): (&str, &Nbdkit)| Disk::new(name, origin.uri()).with(DIRTY).with(line);
            names.into_iter().zip(&origins).map(disk).collect()
        };
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let settings = |disks, me| Settings { more: hosts.tables(me), ..Settings::new(256, disks) };
        let places = [place.host("a")?, place.host("b")?];
        let new = settings(disks("from = \"none\""), "alpha");
        let [alpha, mut beta] = Haversack::start_both(&places, [new, settings(disks(""), "beta")])?;

        let [mut off, mut on] = names.map(|name| Guest::start(&alpha, name, Vec::new()));
        off.switch_write_cache(false)?;
        off.write(1)?;
        on.write(1)?;
        let [off, on] = [off.stop(), on.stop()];
        let mut off = Guest::start(&beta, "vm1", off);
        // The first writes may be answered before the setting is known.
        (2..20).try_for_each(|number| off.write(number))?;
        cut_power(&mut beta)?;
        let mut off = Guest::start(&beta, "vm1", off.stop());
        off.verify()?;
        let known = |name| format!("disk=\"{name}\" host=\"alpha\"");
        beta.wait_for_log(&["the write cache of the guest is known", &known("vm1"), "on=false"])?;
        (20..40).try_for_each(|number| off.write(number))?;
        cut_power(&mut beta)?;
        let mut off = Guest::start(&beta, "vm1", off.stop());
        off.verify()?;
        (40..60).try_for_each(|number| off.write(number))?;
        cut_power(&mut beta)?;
        Guest::start(&beta, "vm1", off.stop()).verify()?;

        let mut on = Guest::start(&beta, "vm2", on);
        on.verify()?;
        beta.wait_for_log(&["the write cache of the guest is known", &known("vm2"), "on=true"])?;
        wait_until("the end of the move", PATIENCE, || Ok(state(&beta, "vm1")? == "here"))?;
        Ok(())
    });
}
