//! A back end in a process of its own, killed again and again at random moments under load.
//!
//! The guest goes on with the next back end by the in-flight region, and sees each request completed exactly once.
//! Not a test harness, since the program is also the back end: `kill SOCKET` serves there until it is killed.
mod support;

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use haversack_model::random::Random;
use haversack_vhost_user::{DeviceConfig, serve};
use support::client::Client;
use support::disk::{Mood, TestDisk};
use support::driver::{self, BUFFERS, Driver};
use support::{Ram, socket_path};

const LIVES: u32 = 60;
const QUEUES: u16 = 2;
const QUEUE_SIZE: u16 = 64;
const DISK_BYTES: usize = 1 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--list") => println!("killed_under_load: test"),
        Some(path) if path.ends_with(".sock") => back_end(Path::new(path)),
        _ => killed_under_load(),
    }
}

fn back_end(path: &Path) {
    let disk = TestDisk::new(DISK_BYTES);
    disk.set_mood(Mood::Moody);
    let config = DeviceConfig { capacity_sectors: 2048, queues: QUEUES, ..DeviceConfig::default() };
    let _server = serve(path, 0o600, config, disk).unwrap();
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A back end that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn killed_under_load() {
    let path = socket_path();
    let ram = Ram::new();
    let mut numbers = Random::new(3);
    let mut inflight = None;
    let mut drivers: Vec<Driver> = (0..QUEUES).map(|index| Driver::new(&ram, index, QUEUE_SIZE)).collect();
    drivers[1].indirect = true;
    let (mut submitted, mut completed, mut left_in_flight) = (0u64, 0u64, 0);
    for life in 0..LIVES {
        let program = std::env::current_exe().unwrap();
        let back_end = Killed(Command::new(program).arg(&path).spawn().unwrap());
        let mut client = Client::new(&path, &ram, 0);
        let inflight = inflight.get_or_insert_with(|| client.new_inflight(QUEUES, QUEUE_SIZE));
        client.start(drivers, Some(inflight));
        for _ in 0..numbers.below(4000) {
            let queue = &mut client.queues[numbers.below(QUEUES.into()) as usize];
            submitted += u64::from(queue.submit(driver::WRITE, 0, &[(BUFFERS, 512)]).is_some());
            if numbers.below(3) > 0 {
                completed += u64::from(queue.driver.completed().is_some());
            }
        }
        if life + 1 == LIVES {
            for queue in &mut client.queues {
                while queue.driver.in_flight() > 0 {
                    assert_eq!(queue.wait().2, 0);
                    completed += 1;
                }
            }
        }
        drop(back_end);
        left_in_flight += client.queues.iter().map(|q| q.driver.in_flight()).sum::<usize>();
        drivers = client.queues.into_iter().map(|queue| queue.driver).collect();
    }
    std::fs::remove_file(&path).unwrap();
    assert!(
        drivers.iter().all(|driver| driver.used_index() == driver.used),
        "more completions than requests"
    );
    assert_eq!(completed, submitted);
    assert!(left_in_flight > 100, "the kills hit {left_in_flight} requests only");
    println!("{LIVES} lives, {submitted} requests, {left_in_flight} in flight at a kill, all completed once");
}
