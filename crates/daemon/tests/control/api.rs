//! The control API with a fake data path: which requests are refused, with which status and hint; jobs; which disks are
//! remembered.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use haversack_admission::StagingKind;
use haversack_api::{DiskConfig, DiskState, Size};
use haversack_core::{AdmissionConfig, Damage, DiskInfo, Moved, Target};
use haversack_daemon::control::router;
use haversack_daemon::daemon::Disk;
use haversack_engine::RecordedDisk;
use haversack_model::{DiskId, HostId, SectorNo, WriteMode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fake::{Api, POLL_EVERY, POLLS, admin, vm1};

#[tokio::test]
async fn a_disk_lives() {
    let api = Api::new();
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    let (status, disk) = api.call("GET", "/v1/disks/vm1", Value::Null).await;
    assert_eq!((status, &disk["state"], &disk["size_bytes"]), (200, &json!("attached"), &json!(1 << 30)));
    assert!(api.daemon.state.disks()["vm1"].attached);

    assert_eq!(api.work("PATCH", "/v1/disks/vm1", json!({"mode": "wt"})).await["state"], "done");
    assert_eq!(*api.fake.modes.lock().unwrap(), ["wt".parse().unwrap()]);

    assert_eq!(api.work("POST", "/v1/disks/vm1/resize", json!({"size": "2GiB"})).await["state"], "done");
    assert_eq!(api.call("GET", "/v1/disks/vm1", Value::Null).await.1["size_bytes"], json!(2_u64 << 30));

    assert_eq!(api.work("DELETE", "/v1/disks/vm1", Value::Null).await["state"], "done");
    assert!(!api.daemon.state.disks()["vm1"].attached);
    assert_eq!(api.work("POST", "/v1/disks/vm1/forget", json!({})).await["state"], "done");
    assert_eq!(api.call("GET", "/v1/disks/vm1", Value::Null).await.0, 404);
}

/// A change of the write mode takes as long as cleaning does.
#[tokio::test]
async fn changes_at_the_same_time_are_all_kept() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    api.fake.holds_modes.store(true, Ordering::Relaxed);
    let (_, first) = api.call("PATCH", "/v1/disks/vm1", json!({"mode": "wt"})).await;
    for _ in 0..POLLS {
        if !api.fake.modes.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    let (_, second) = api.call("PATCH", "/v1/disks/vm1", json!({"priority": 2.0})).await;
    assert_eq!(api.work("POST", "/v1/disks/vm1/resize", json!({"size": "2GiB"})).await["state"], "done");
    api.fake.holds_modes.store(false, Ordering::Relaxed);
    for job in [first, second] {
        assert_eq!(api.ended(&job).await["state"], "done");
    }
    let DiskConfig { mode, priority, size, .. } = api.daemon.state.disks()["vm1"].config.clone();
    assert_eq!((mode.to_string().as_str(), priority, size), ("wt", 2.0, Some(Size(2 << 30))));
}

#[tokio::test]
async fn a_loss_is_accepted_for_one_attach_only() {
    let api = Api::new();
    let mut disk = vm1();
    (disk["accept_loss"], disk["accept_origin_change"]) = (json!("vm1"), json!("vm1"));
    assert_eq!(api.work("POST", "/v1/disks", disk).await["state"], "done");
    let changed = api.work("PATCH", "/v1/disks/vm1", json!({"sequential_cutoff": "1MiB"})).await;
    assert_eq!(changed["state"], "done");
    for config in [api.daemon.state.disks()["vm1"].config.clone(), api.daemon.disk("vm1").unwrap().config()] {
        assert_eq!((config.accept_loss, config.accept_origin_change), (None, None));
    }
}

#[tokio::test]
async fn an_image_has_one_disk_under_whatever_name() {
    let api = Api::new();
    let [image, link, hard] = ["image", "link", "hard"].map(|name| api.dir.path().join(name));
    std::fs::write(&image, "").unwrap();
    std::os::unix::fs::symlink(&image, &link).unwrap();
    std::fs::hard_link(&image, &hard).unwrap();
    let disk = |name: &str, origin: &Path| {
        let size = Some(Size(1 << 30));
        DiskConfig { size, ..DiskConfig::new(name, "main", &origin.display().to_string()) }
    };
    // The disk that comes first in the file has the image.
    let disks = vec![(disk("vm2", &link), false), (disk("vm1", &image), false)];
    let (attaching, errors) = api.daemon.begin_attaching(disks);
    assert!(errors.is_empty(), "{errors:?}");
    let slow = api.daemon.await_attached(&attaching, Instant::now() + Duration::from_secs(60));
    assert!(slow.is_empty());
    let state = |name: &str| api.daemon.disk(name).unwrap().with(|inner| (inner.state, inner.error.clone()));
    assert_eq!(state("vm2"), (DiskState::Attached, None));
    let (waits, why) = state("vm1");
    assert!(waits == DiskState::Waiting && why.as_ref().unwrap().contains("one writer"), "{why:?}");
    let third = serde_json::to_value(disk("vm3", &hard)).unwrap();
    let job = api.work("POST", "/v1/disks", third.clone()).await;
    assert_eq!(job["state"], "failed", "{job}");
    for name in ["vm1", "vm2"] {
        assert_eq!(api.work("DELETE", &format!("/v1/disks/{name}"), Value::Null).await["state"], "done");
    }
    assert_eq!(api.work("POST", "/v1/disks", third).await["state"], "done");
}

#[tokio::test]
async fn a_disk_with_a_replica_can_be_quiesced() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    let disk = api.daemon.disk("vm1").unwrap();
    disk.with(|inner| inner.config.replicate = Some("beta".into()));
    for mode in ["wt", "wb"] {
        assert_eq!(api.work("PATCH", "/v1/disks/vm1", json!({ "mode": mode })).await["state"], "done");
    }
    let order = json!({"cleaner": {"order": "flush"}});
    let (status, refusal) = api.call("PATCH", "/v1/disks/vm1", order).await;
    assert!(status == 400 && refusal["error"].as_str().unwrap().contains("order of flushes"), "{refusal}");
    disk.with(|inner| inner.config.replicate = None);
    api.work("PATCH", "/v1/disks/vm1", json!({"mode": "wt"})).await;
    let (status, refusal) = api.call("PATCH", "/v1/disks/vm1", json!({"replicate": "beta"})).await;
    assert!(status == 400 && refusal["error"].as_str().unwrap().contains("nothing is dirty"), "{refusal}");
}

#[tokio::test]
async fn an_attach_waits_for_what_is_still_ending_of_its_disk() {
    let api = Api::new();
    api.fake.busy.store(5, Ordering::Relaxed);
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
}

/// A disk whose socket cannot be served.
fn unserved() -> Value {
    let mut disk = vm1();
    disk["vhost_user"] = json!("/run/haversack/vm1.sock");
    disk
}

#[tokio::test]
async fn a_disk_that_is_neither_served_nor_detached_again_stays_attached_until_it_is_detached() {
    let api = Api::new();
    api.fake.fails_detach.store(true, Ordering::Relaxed);
    let job = api.work("POST", "/v1/disks", unserved()).await;
    assert_eq!(job["state"], "failed", "{job}");
    let (_, disk) = api.call("GET", "/v1/disks/vm1", Value::Null).await;
    assert_eq!(disk["state"], "attached", "{disk}");
    assert!(disk["error"].as_str().unwrap().contains("haversack disk detach"), "{disk}");
    assert!(api.daemon.state.disks()["vm1"].attached);
    assert_eq!(api.call("POST", "/v1/disks", vm1()).await.0, 409);

    api.fake.fails_detach.store(false, Ordering::Relaxed);
    assert_eq!(api.work("DELETE", "/v1/disks/vm1", Value::Null).await["state"], "done");
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    assert_eq!(api.fake.attached.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_attach_that_panics_is_undone() {
    let api = Api::new();
    api.fake.panics.store(true, Ordering::Relaxed);
    let job = api.work("POST", "/v1/disks", unserved()).await;
    assert!(job["error"].as_str().unwrap().contains("broken"), "{job}");
    assert_eq!(api.call("GET", "/v1/disks/vm1", Value::Null).await.0, 404);
    assert!(api.fake.attached.lock().unwrap().is_empty() && api.daemon.state.disks().is_empty());
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
}

#[tokio::test]
async fn a_take_over_that_was_noted_can_be_forgotten() {
    let api = Api::new();
    let (disk, other) = (DiskId([7; 16]), DiskId([8; 16]));
    let state = &api.daemon.state;
    state.note_taken_over([disk, other].map(|disk| (disk, HostId(2), 9))).unwrap();
    let path = |name: &str| format!("/v1/disks/{name}/forget");
    assert_eq!(api.work("POST", &path(&disk.to_string()), json!({})).await["state"], "done");
    assert_eq!((state.taken_over(disk), state.taken_over(other)), (None, Some((HostId(2), 9))));
    assert_eq!(api.call("POST", &path("vm1"), json!({})).await.0, 404);
    // Forgetting a disk also removes the note of its takeover.
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    let disk = api.daemon.disk("vm1").unwrap().id;
    state.note_taken_over([(disk, HostId(2), 9)]).unwrap();
    assert_eq!(api.work("DELETE", "/v1/disks/vm1", Value::Null).await["state"], "done");
    assert_eq!(api.work("POST", &path("vm1"), json!({})).await["state"], "done");
    assert_eq!(state.taken_over(disk), None);
}

#[tokio::test]
async fn blocks_that_another_host_needs_are_not_forgotten_by_any_name() {
    let api = Api::new();
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    let id = api.daemon.disk("vm1").unwrap().id;
    assert_eq!(api.work("DELETE", "/v1/disks/vm1", Value::Null).await["state"], "done");
    let info = DiskInfo {
        id,
        sectors: 1 << 21,
        phase: 0,
        mode: WriteMode::WriteBack,
        writes_through: false,
        attached: false,
        owned: false,
        epoch: 2,
        damage: Damage::None,
        moved: Moved::Peer { to: HostId(0xbe7a) },
        busy: false,
        left_clean: false,
    };
    *api.fake.recorded.lock().unwrap() = Some(RecordedDisk { info, dirty_blocks: 3, has_losses: false });
    for body in [json!({}), json!({"destroy_dirty": "vm1"})] {
        let (status, refusal) = api.call("POST", "/v1/disks/vm1/forget", body).await;
        assert_eq!((status, &refusal["code"]), (409, &json!("conflict")), "{refusal}");
        let said = refusal["error"].as_str().unwrap();
        assert!(said.contains("be7a") && said.contains("12288 dirty bytes"), "{said}");
        assert!(refusal["hint"].as_str().unwrap().contains("haversack disk own"), "{refusal}");
    }
    // That host has them now.
    let info = DiskInfo { moved: Moved::Away { to: HostId(0xbe7a), holder: None }, ..info };
    *api.fake.recorded.lock().unwrap() = Some(RecordedDisk { info, dirty_blocks: 0, has_losses: false });
    assert_eq!(api.work("POST", "/v1/disks/vm1/forget", json!({})).await["state"], "done");
}

#[tokio::test]
async fn destructive_changes_need_confirmation_and_no_client() {
    let api = Api::new();
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    let less = |shrink: Value| json!({"size": "1MiB", "shrink": shrink});
    let resize = "/v1/disks/vm1/resize";
    let (status, refusal) = api.call("POST", resize, json!({"size": "1MiB"})).await;
    assert_eq!((status, &refusal["code"]), (409, &json!("shrinks")), "{refusal}");
    assert_eq!(api.call("POST", resize, less(json!("vm2"))).await.0, 400);
    api.fake.peers.lock().unwrap().push("NBD client pid 7 (qemu)".into());
    for (method, path, body) in
        [("POST", resize, less(json!("vm1"))), ("DELETE", "/v1/disks/vm1?force=false", Value::Null)]
    {
        let (status, refusal) = api.call(method, path, body).await;
        assert_eq!((status, &refusal["code"]), (409, &json!("in-use")), "{refusal}");
        assert!(refusal["error"].as_str().unwrap().contains("'vm1' is in use by NBD client pid 7 (qemu)"));
    }
    assert_eq!(api.work("DELETE", "/v1/disks/vm1?force=true", Value::Null).await["state"], "done");
}

#[tokio::test]
async fn losses_are_listed_and_accepted_only_by_name() {
    let api = Api::new();
    assert_eq!(api.call("GET", "/v1/disks/vm1/lost", Value::Null).await.0, 404);
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    *api.fake.lost.lock().unwrap() = vec![(SectorNo(8), 4), (SectorNo(24), 8)];
    let (status, lost) = api.call("GET", "/v1/disks/vm1/lost", Value::Null).await;
    assert_eq!((status, &lost["bytes"], &lost["more_ranges"]), (200, &json!(6144), &json!(0)));
    assert_eq!(lost["ranges"][0], json!({"offset_bytes": 4096, "length_bytes": 2048}));
    assert_eq!(api.call("DELETE", "/v1/disks/vm1?accept_loss=vm2", Value::Null).await.0, 400);
    let job = api.work("DELETE", "/v1/disks/vm1", Value::Null).await;
    assert_eq!(job["state"], "failed");
    assert!(job["error"].as_str().unwrap().contains("--accept-loss vm1"), "{job}");
    assert_eq!(api.work("DELETE", "/v1/disks/vm1?accept_loss=vm1", Value::Null).await["state"], "done");
    assert_eq!(api.call("GET", "/v1/disks/vm1/lost", Value::Null).await.0, 409);
}

#[tokio::test]
async fn a_flush_tells_its_progress_and_can_be_cancelled() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    let (_, job) = api.call("POST", "/v1/disks/vm1/flush", Value::Null).await;
    let path = format!("/v1/jobs/{}", job["id"]);
    let mut seen = job.clone();
    while seen["total_blocks"].is_null() {
        tokio::time::sleep(POLL_EVERY).await;
        seen = api.call("GET", &path, Value::Null).await.1;
    }
    assert_eq!((&seen["done_blocks"], &seen["total_blocks"]), (&json!(1), &json!(4)));
    assert!(seen["eta_s"].as_f64().is_some());
    assert_eq!(api.call("DELETE", &path, Value::Null).await.0, 202);
    assert_eq!(api.ended(&job).await["state"], "cancelled");
}

#[tokio::test]
async fn errors_have_a_status_a_code_and_a_hint() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    let cases = [
        ("GET", "/v1/disks/vm9", Value::Null, 404, "not-found"),
        ("GET", "/v1/jobs/99", Value::Null, 404, "not-found"),
        ("GET", "/nowhere", Value::Null, 404, "not-found"),
        ("PUT", "/v1/disks", Value::Null, 405, "method"),
        ("POST", "/v1/disks", vm1(), 409, "conflict"),
        ("POST", "/v1/disks", json!({"name": "vm2", "pool": "x", "origin": "/b"}), 404, "not-found"),
        ("POST", "/v1/disks", json!({"name": "a/b", "pool": "main", "origin": "/b"}), 400, "bad-request"),
        ("POST", "/v1/disks", json!({"name": "vm2", "colour": 1}), 422, "bad-request"),
        ("POST", "/v1/disks/vm1/resize", json!({"size": 1000}), 400, "bad-request"),
        ("POST", "/v1/disks/vm1/forget", json!({}), 409, "conflict"),
        ("PATCH", "/v1/disks/vm1", json!({"persistence": "all"}), 422, "bad-request"),
        ("DELETE", "/v1/pools/main/devices/0", Value::Null, 409, "conflict"),
        ("POST", "/v1/pools/main/devices", json!({"path": "relative"}), 400, "bad-request"),
        ("GET", "/v1/events?after=x", Value::Null, 400, "bad-request"),
        ("PUT", "/v1/policy", json!({"allocator": "fair"}), 400, "bad-request"),
        ("PUT", "/v1/policy", json!({"allocator": "wss", "colour": 1}), 422, "bad-request"),
        ("POST", "/v1/disks/vm1/event", json!({"event": "suspended"}), 409, "conflict"),
        ("POST", "/v1/disks/vm1/event", json!({"event": "exploded"}), 422, "bad-request"),
        ("GET", "/v1/disks/vm1/curve", Value::Null, 409, "conflict"),
        ("GET", "/v1/disks/vm9/explain", Value::Null, 404, "not-found"),
        ("GET", "/v1/disks/vm9/trace", Value::Null, 404, "not-found"),
        ("GET", "/v1/policy/log?pool=x", Value::Null, 404, "not-found"),
        ("PATCH", "/v1/disks/vm1", json!({"priority": 0.0}), 400, "bad-request"),
        ("POST", "/v1/migrations", json!({}), 400, "bad-request"),
        ("POST", "/v1/migrations", json!({"name": "vm1", "vhost_user": "/s"}), 400, "bad-request"),
        ("POST", "/v1/migrations", json!({"name": "no name"}), 400, "bad-request"),
        ("POST", "/v1/migrations", json!({"vhost_user": "vm1.sock"}), 400, "bad-request"),
        ("POST", "/v1/migrations", json!({"name": "vm1"}), 409, "conflict"),
    ];
    for (method, path, body, status, code) in cases {
        let (found, answer) = api.call(method, path, body).await;
        assert_eq!((found, &answer["code"]), (status, &json!(code)), "{method} {path}: {answer}");
        assert!(
            !answer["hint"].as_str().unwrap().is_empty() && !answer["error"].as_str().unwrap().is_empty()
        );
    }
}

/// Returns a disk's target. The pool has 1000 blocks.
fn blocks(api: &Api, disk: u16) -> Target {
    api.fake.targets.lock().unwrap()[&disk]
}

#[tokio::test]
async fn a_policy_divides_the_pool_handles_events_and_keeps_the_operators_settings() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    api.work("POST", "/v1/disks", json!({"name": "vm2", "pool": "main", "origin": "/c", "size": "1GiB"}))
        .await;
    let (status, why) = api.call("GET", "/v1/disks/vm1/explain", Value::Null).await;
    let text = why["text"].as_str().unwrap();
    assert!(status == 200 && text.contains("No policy") && text.contains("every block enters"), "{why}");

    let (status, set) = api.call("PUT", "/v1/policy", json!({"allocator": "equal"})).await;
    assert_eq!((status, &set["measures"], &set["pools"][0]["decisions"]), (200, &json!(false), &json!(1)));
    assert_eq!((blocks(&api, 0), blocks(&api, 1)), (Target::Blocks(500), Target::Blocks(500)));
    assert!(api.fake.monitored.lock().unwrap().is_empty());

    let (status, told) = api.call("POST", "/v1/disks/vm2/event", json!({"event": "suspended"})).await;
    assert_eq!((status, &told["state"], &told["target_bytes"]), (200, &json!("suspended"), &json!(0)));
    assert_eq!((blocks(&api, 0), blocks(&api, 1)), (Target::Blocks(1000), Target::Blocks(0)));
    let again = api.call("POST", "/v1/disks/vm2/event", json!({"event": "suspended"})).await;
    assert_eq!((again.0, &again.1["code"]), (409, &json!("conflict")));
    assert_eq!(api.call("POST", "/v1/disks/vm2/event", json!({"event": "resumed"})).await.0, 200);

    // A target set by the operator is taken out of the pool before the rest is divided.
    let change = json!({"target": "400KiB", "mode": "wt", "reservation": 0});
    assert_eq!(api.work("PATCH", "/v1/disks/vm2", change).await["state"], "done");
    assert_eq!((blocks(&api, 0), blocks(&api, 1)), (Target::Blocks(900), Target::Blocks(100)));
    let (_, why) = api.call("GET", "/v1/disks/vm2/explain", Value::Null).await;
    let why = why["text"].as_str().unwrap();
    assert!(why.contains("100 blocks") && why.contains("400KiB is the operator's"), "{why}");

    let (_, log) = api.call("GET", "/v1/policy/log?last=100&pool=main", Value::Null).await;
    let kinds: Vec<&str> = log.as_array().unwrap().iter().map(|e| e["entry"].as_str().unwrap()).collect();
    assert_eq!(kinds[..4], ["started", "event", "event", "decision"], "{log}");
    let text = std::fs::read_to_string(api.dir.path().join("policy-main.log")).unwrap();
    let replay = haversack_control::log::replay(text.lines()).unwrap();
    assert_eq!((replay.decisions, replay.differences), (4, vec![]));

    // A policy that measures records every disk; without a policy nothing is recorded and all is as configured.
    api.call("PUT", "/v1/policy", json!({"allocator": "rwss", "window": "10s"})).await;
    assert_eq!(api.fake.monitored.lock().unwrap().len(), 2);
    assert_eq!(api.call("DELETE", "/v1/policy", Value::Null).await.0, 200);
    assert!(api.fake.monitored.lock().unwrap().is_empty());
    let one_pool = Target::Shared { at_least_blocks: 0, at_most_blocks: u64::MAX };
    assert_eq!((blocks(&api, 0), blocks(&api, 1)), (one_pool, Target::Blocks(100)));
}

#[tokio::test]
async fn a_daemon_starts_though_its_disks_cannot_be_weighed() {
    let api = Api::new();
    let mut disk = vm1();
    disk["priority"] = json!(0.0);
    assert_eq!(api.work("POST", "/v1/disks", disk).await["state"], "done");
    let equal = haversack_api::PolicySettings::named("equal");
    api.daemon.begin_policy(Some(equal)).unwrap();
    let reports =
        api.daemon.events.after(0).events.into_iter().filter(|event| event.kind == "policy-refused");
    let reports: Vec<_> = reports.map(|event| (event.subject, event.message)).collect();
    assert!(
        matches!(&reports[..], [(pool, why)] if pool == "main" && why.contains("priorities")),
        "{reports:?}"
    );
    let (_, status) = api.call("GET", "/v1/policy", Value::Null).await;
    assert_eq!(status["settings"]["allocator"], "equal");
}

#[tokio::test]
async fn no_more_of_the_log_is_read_than_an_answer_may_have() {
    let api = Api::new();
    let lines = (0..1500).map(|number| format!("{}\n", json!({"entry": "event", "time_us": number})));
    std::fs::write(api.dir.path().join("policy-main.log"), lines.collect::<String>()).unwrap();
    let (status, log) = api.call("GET", &format!("/v1/policy/log?last={}", u64::MAX), Value::Null).await;
    let times: Vec<_> = log.as_array().unwrap().iter().map(|entry| entry["time_us"].as_u64()).collect();
    assert_eq!((status, times.len(), times[0], times[999]), (200, 1000, Some(500), Some(1499)));
}

#[tokio::test]
async fn a_disk_that_has_ended_is_not_recorded_until_it_is_new() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    let policy = json!({"allocator": "rwss", "window": "10s"});
    api.call("PUT", "/v1/policy", policy.clone()).await;
    for (event, recorded) in
        [("ended", 0), ("new", 1), ("suspended", 0), ("resumed", 1), ("stunned", 1), ("migrating-out", 0)]
    {
        let path = "/v1/disks/vm1/event";
        assert_eq!(api.call("POST", path, json!({ "event": event })).await.0, 200, "{event}");
        assert_eq!(api.fake.monitored.lock().unwrap().len(), recorded, "{event}");
    }
    api.call("POST", "/v1/disks/vm1/event", json!({"event": "ended"})).await;
    // Neither another policy nor another setting revives an ended disk.
    api.call("PUT", "/v1/policy", policy).await;
    api.work("PATCH", "/v1/disks/vm1", json!({"priority": 2.0})).await;
    assert!(api.fake.monitored.lock().unwrap().is_empty());
    assert_eq!(blocks(&api, 0), Target::Blocks(0));
}

#[tokio::test]
async fn reads_beyond_the_old_size_count_after_a_disk_has_grown() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    let policy = json!({"allocator": "wss", "demand": "touch-count", "window": "100ms"});
    assert_eq!(api.call("PUT", "/v1/policy", policy).await.0, 200);
    haversack_daemon::governed::start(&api.daemon).unwrap();
    assert_eq!(api.work("POST", "/v1/disks/vm1/resize", json!({"size": "2GiB"})).await["state"], "done");
    // Two regions beyond the disk's old size, each of them read twice.
    let (one, other) = (300_000, 400_000);
    api.fake.reads.lock().unwrap().extend([one, other, one + 9, other + 9]);
    for _ in 0..POLLS {
        let (_, log) = api.call("GET", "/v1/policy/log?last=1", Value::Null).await;
        let touched = log[0].pointer("/inputs/disks/0/window/touched_blocks");
        if touched.and_then(Value::as_u64).is_some_and(|blocks| blocks > 0) {
            return;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    panic!("touches of what a disk has grown by are not counted");
}

#[tokio::test]
async fn a_filter_of_the_operators_goes_by_the_disks_share() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    let vm2 = json!({"name": "vm2", "pool": "main", "origin": "/c", "size": "1GiB", "admission": "larc"});
    api.work("POST", "/v1/disks", vm2).await;
    let filter = |disk: u16| api.fake.filters.lock().unwrap().get(&disk).copied();
    api.call("PUT", "/v1/policy", json!({"allocator": "equal"})).await;
    assert_eq!(filter(1), Some(AdmissionConfig::Larc { cache_blocks: 500 }));
    api.call("POST", "/v1/disks/vm1/event", json!({"event": "suspended"})).await;
    assert_eq!(filter(1), Some(AdmissionConfig::Larc { cache_blocks: 1000 }));
    api.work("PATCH", "/v1/disks/vm2", json!({"target": "400KiB"})).await;
    assert_eq!(filter(1), Some(AdmissionConfig::Larc { cache_blocks: 100 }));

    // Half a percent of the disk's 100 blocks is below the minimum.
    api.work("PATCH", "/v1/disks/vm2", json!({"admission": "data(2)"})).await;
    let data = |bytes| AdmissionConfig::Staging { kind: StagingKind::Data, reuses: 2, bytes };
    assert_eq!(filter(1), Some(data(StagingKind::Data.least_bytes())), "less would hold nothing");
    api.work("PATCH", "/v1/disks/vm2", json!({"target": "4000KiB"})).await;
    api.work("PATCH", "/v1/disks/vm2", json!({"admission": "hybrid(1)"})).await;
    let hybrid = AdmissionConfig::Staging { kind: StagingKind::Hybrid, reuses: 1, bytes: 20_480 };
    assert_eq!(filter(1), Some(hybrid));
    let hec = AdmissionConfig::Hec { region_blocks: 1024, run_blocks: 1024 };
    api.work("PATCH", "/v1/disks/vm2", json!({"admission": "hec"})).await;
    assert_eq!(filter(1), Some(hec));
    let (_, why) = api.call("GET", "/v1/disks/vm2/explain", Value::Null).await;
    assert!(why["text"].as_str().unwrap().contains("admission hec is the operator's, not always"), "{why}");
    let (status, refused) = api.call("PATCH", "/v1/disks/vm2", json!({"admission": "hec(3)"})).await;
    let told = refused["error"].as_str().unwrap();
    assert!(status == 422 && told.contains("expected auto, always, learned, hec, larc"), "{status} {told}");
}

#[tokio::test]
async fn a_disk_is_recorded_only_while_its_trace_is_read() {
    let api = Api::new();
    api.work("POST", "/v1/disks", vm1()).await;
    let (stop, _) = tokio::sync::mpsc::channel(1);
    let request = Request::builder()
        .extension(admin())
        .uri("/v1/disks/vm1/trace?for=50ms")
        .body(Body::empty())
        .unwrap();
    let answer = router(api.daemon.clone(), stop).oneshot(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), api.fake.monitored.lock().unwrap().len()), (200, 1));
    haversack_daemon::governed::start(&api.daemon).unwrap();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "timestamp_ns,volume,op,offset_bytes,length_bytes\n");
    assert_eq!(api.call("GET", "/v1/policy", Value::Null).await.1["pools"][0]["decisions"], 0);
    assert!(api.fake.monitored.lock().unwrap().is_empty());
}

#[tokio::test]
async fn every_path_is_described() {
    let (status, document) = Api::new().call("GET", "/openapi.json", Value::Null).await;
    assert_eq!(status, 200);
    let routes = include_str!("../../src/control/mod.rs").split(".route(").skip(1);
    let mut served: Vec<&str> = routes.filter_map(|rest| rest.split('"').nth(1)).collect();
    served.retain(|path| *path != "/openapi.json");
    served.sort_unstable();
    served.dedup();
    let described: Vec<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(described, served);
    assert!(document["components"]["schemas"]["DiskConfig"]["properties"]["origin"].is_object());
}

#[tokio::test]
async fn events_are_waited_for() {
    let api = Api::new();
    let (_, none) = api.call("GET", "/v1/events?after=0&wait=10ms", Value::Null).await;
    assert_eq!(none, json!({"events": [], "next": 0}));
    let daemon = api.daemon.clone();
    std::thread::spawn(move || daemon.events.add("origin-away", "vm1", "gone"));
    let (_, some) = api.call("GET", "/v1/events?after=0&wait=30s", Value::Null).await;
    assert_eq!((&some["events"][0]["kind"], &some["next"]), (&json!("origin-away"), &json!(1)));
}

#[tokio::test]
async fn who_changes_something_is_noted() {
    let api = Api::new();
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    assert_eq!(api.call("POST", "/v1/disks/vm2/flush", Value::Null).await.0, 404);
    assert_eq!(api.call("GET", "/v1/disks/vm1", Value::Null).await.0, 200);
    let (_, events) = api.call("GET", "/v1/events", Value::Null).await;
    let audited = events["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "audit");
    let audited: Vec<_> = audited
        .map(|event| (event["subject"].as_str().unwrap(), event["message"].as_str().unwrap()))
        .collect();
    let wanted =
        [("daemon", "unknown: POST /v1/disks: 202"), ("vm2", "unknown: POST /v1/disks/vm2/flush: 404")];
    assert_eq!(audited, wanted);
}

/// Returns the daemon's answer to a GET request, as text.
async fn text(api: &Api, path: &str) -> (u16, String) {
    let (stop, _) = tokio::sync::mpsc::channel(1);
    let request = Request::get(path).extension(admin()).body(Body::empty()).unwrap();
    let answer = router(api.daemon.clone(), stop).oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn a_daemon_is_ready_when_no_disk_waits_and_healthy_all_the_time() {
    let api = Api::new();
    assert_eq!(text(&api, "/readyz").await, (200, "ok\n".into()));
    for (name, state) in [("vm1", DiskState::Waiting), ("vm2", DiskState::Attaching)] {
        let disk =
            Disk::new(DiskConfig::new(name, "main", &format!("nbd://host/{name}")), true, state).unwrap();
        api.daemon.insert_disk(name, Arc::new(disk)).unwrap();
    }
    let why = "disk vm1 is waiting\ndisk vm2 is attaching\n";
    assert_eq!(text(&api, "/readyz").await, (503, why.into()));
    assert_eq!(text(&api, "/healthz").await, (200, "ok\n".into()));
}

#[tokio::test]
async fn the_daemon_stops_when_the_response_that_says_so_is_complete() {
    let api = Api::new();
    let (stop, mut stopped) = tokio::sync::mpsc::channel(1);
    let request = Request::post("/v1/stop").extension(admin()).body(Body::empty()).unwrap();
    tokio::select! {
        biased;
        response = router(api.daemon.clone(), stop).oneshot(request) => assert_eq!(response.unwrap().status(), 202),
        _ = stopped.recv() => panic!("the daemon would end before the response"),
    }
    assert_eq!(stopped.recv().await, Some(()));
    let (_, events) = api.call("GET", "/v1/events", Value::Null).await;
    assert_eq!(events["events"][0]["message"], "unknown: POST /v1/stop: 202");
}
