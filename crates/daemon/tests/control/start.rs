//! A start that goes on while the API is served, and disks whose origins do not answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haversack_api::{DiskConfig, DiskState, Size};
use haversack_daemon::config::Config;
use haversack_daemon::daemon::Disk;
use haversack_daemon::start::Start;
use serde_json::{Value, json};

use crate::fake::{Api, vm1};

/// Begins a start whose only disk is being attached for ten seconds, or until the data path is no longer busy.
fn begin(api: &Api) -> Start {
    api.fake.busy.store(u16::MAX, Ordering::Relaxed);
    let disk: DiskConfig = serde_json::from_value(vm1()).unwrap();
    Start::begin(&api.daemon, vec![(disk, false)])
}

fn config() -> Config {
    Config::parse(Path::new("haversackd.toml"), "[policy]\nallocator = \"equal\"\n").unwrap()
}

#[test]
fn a_stop_ends_a_start_before_it_begins_anything() {
    let api = Api::new();
    let start = begin(&api);
    let (begun, daemon) = (Instant::now(), api.daemon.clone());
    let stop = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        daemon.begin_stop();
    });
    start.finish(&api.daemon, &config()).unwrap();
    stop.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(api.daemon.is_starting());
    assert_eq!(api.daemon.with_policy(|policy| policy.status()).settings, None);
}

#[tokio::test]
async fn a_daemon_that_starts_says_so_and_has_no_other_policy() {
    let api = Api::new();
    let start = begin(&api);
    assert_eq!(api.daemon.not_ready(), ["starting", "disk vm1 is attaching"]);
    for (method, path, body) in [
        ("PUT", "/v1/policy", json!({"allocator": "wss"})),
        ("DELETE", "/v1/policy", Value::Null),
        ("POST", "/v1/disks/vm1/event", json!({"event": "new"})),
    ] {
        let (status, refusal) = api.call(method, path, body).await;
        assert_eq!((status, refusal["code"].as_str()), (503, Some("starting")), "{method} {path}: {refusal}");
    }
    assert_eq!(api.call("GET", "/v1/status", Value::Null).await.1["starting"], true);
    api.fake.busy.store(0, Ordering::Relaxed);
    start.finish(&api.daemon, &config()).unwrap();
    assert!(api.daemon.not_ready().is_empty());
    let (_, status) = api.call("GET", "/v1/policy", Value::Null).await;
    assert_eq!(status["settings"]["allocator"], "equal");
    assert_eq!(api.call("PUT", "/v1/policy", json!({"allocator": "wss"})).await.0, 200);
    api.daemon.begin_stop();
}

#[tokio::test]
async fn a_disk_waits_only_briefly_for_what_is_not_known_of_those_before_it() {
    let api = Api::new();
    // Nothing looks its origin up, as if its file system did not answer.
    let hung = Disk::new(DiskConfig::new("vm0", "main", "/dev/a"), false, DiskState::Attaching).unwrap();
    api.daemon.insert_disk("vm0", Arc::new(hung)).unwrap();
    let begun = Instant::now();
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_device_is_compared_with_what_origins_were_when_their_disks_were_attached() {
    let api = Api::new();
    let [image, hard] = ["image", "hard"].map(|name| api.dir.path().join(name));
    std::fs::write(&image, "").unwrap();
    std::fs::hard_link(&image, &hard).unwrap();
    let disk =
        DiskConfig { size: Some(Size(1 << 30)), ..DiskConfig::new("vm1", "main", image.to_str().unwrap()) };
    let disk = serde_json::to_value(disk).unwrap();
    assert_eq!(api.work("POST", "/v1/disks", disk).await["state"], "done");
    // The path no longer leads to the origin: whoever looked it up would not find it.
    std::fs::remove_file(&image).unwrap();
    let (status, refusal) = api.call("POST", "/v1/pools/main/devices", json!({ "path": hard })).await;
    assert!(
        status == 409 && refusal["error"].as_str().unwrap().contains("origin of disk 'vm1'"),
        "{refusal}"
    );
}
