//! What each role may do.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use haversack_daemon::control::Role;
use serde_json::{Value, json};

use crate::fake::{Api, POLL_EVERY, POLLS, vm1};

const ROLES: [Option<Role>; 4] = [None, Some(Role::Reader), Some(Role::Operator), Some(Role::Admin)];

/// Calls, each with the lowest role that may make it.
fn calls() -> Vec<(Role, &'static str, &'static str, Value)> {
    let policy = json!({"allocator": "equal"});
    let mut lossy = vm1();
    lossy["accept_loss"] = json!("vm1");
    let mut moved = vm1();
    moved["accept_origin_change"] = json!("vm1");
    let mut nested = vm1();
    nested["origin_holds_pool"] = json!(true);
    let mut taken = vm1();
    taken["from"] = json!("none");
    let mut node = vm1();
    node["origin"] = json!("qemu:{\"driver\": \"null-co\"}");
    vec![
        (Role::Reader, "GET", "/v1/status", Value::Null),
        (Role::Reader, "GET", "/v1/disks/vm1", Value::Null),
        (Role::Reader, "HEAD", "/v1/disks/vm1", Value::Null),
        (Role::Reader, "GET", "/v1/disks/vm1/own", Value::Null),
        (Role::Reader, "GET", "/v1/events", Value::Null),
        (Role::Reader, "GET", "/v1/policy", Value::Null),
        (Role::Reader, "GET", "/metrics", Value::Null),
        (Role::Reader, "GET", "/healthz", Value::Null),
        (Role::Reader, "GET", "/openapi.json", Value::Null),
        (Role::Reader, "GET", "/", Value::Null),
        (Role::Reader, "GET", "/no/such/path", Value::Null),
        (Role::Reader, "GET", "/v1/cluster", Value::Null),
        (Role::Reader, "GET", "/v1/cluster/plan", Value::Null),
        (Role::Reader, "GET", "/v1/cluster/tenants", Value::Null),
        (Role::Admin, "PUT", "/v1/cluster/hosts/b/drain", Value::Null),
        (Role::Admin, "DELETE", "/v1/cluster/hosts/b/drain", Value::Null),
        (Role::Admin, "POST", "/v1/cluster/hosts/b/forget", json!({"confirm": "b"})),
        (Role::Admin, "PUT", "/v1/cluster/tenants/shop", json!({"weight": 2.0})),
        (Role::Admin, "DELETE", "/v1/cluster/tenants/shop", Value::Null),
        (Role::Operator, "POST", "/v1/disks", vm1()),
        (Role::Admin, "POST", "/v1/disks", lossy),
        (Role::Admin, "POST", "/v1/disks", moved),
        (Role::Admin, "POST", "/v1/disks", nested),
        (Role::Admin, "POST", "/v1/disks", taken),
        (Role::Admin, "POST", "/v1/disks", node),
        (Role::Operator, "GET", "/v1/disks/vm7/trace?for=1ms", Value::Null),
        (Role::Operator, "PATCH", "/v1/disks/vm1", json!({"mode": "wt"})),
        (Role::Operator, "POST", "/v1/disks/vm1/flush", Value::Null),
        (Role::Operator, "POST", "/v1/disks/vm1/resize", json!({"size": "2GiB"})),
        (Role::Admin, "POST", "/v1/disks/vm1/resize", json!({"size": "1MiB", "shrink": "vm1"})),
        (Role::Operator, "POST", "/v1/disks/vm1/event", json!({"event": "migrated-away"})),
        (Role::Operator, "POST", "/v1/disks/vm1/measure?for=1ms", Value::Null),
        (Role::Operator, "POST", "/v1/disks/vm1/migration", json!({"to": "b"})),
        (Role::Operator, "DELETE", "/v1/disks/vm1/migration", Value::Null),
        (Role::Operator, "POST", "/v1/migrations", json!({"name": "vm7"})),
        (Role::Operator, "PUT", "/v1/policy", policy),
        (Role::Operator, "DELETE", "/v1/policy", Value::Null),
        (Role::Operator, "DELETE", "/v1/jobs/999", Value::Null),
        (Role::Operator, "DELETE", "/v1/disks/vm1", Value::Null),
        (Role::Admin, "DELETE", "/v1/disks/vm1?force=true", Value::Null),
        (Role::Admin, "DELETE", "/v1/disks/vm1?accept_loss=vm1", Value::Null),
        (Role::Admin, "POST", "/v1/disks/vm1/forget", json!({})),
        (Role::Admin, "POST", "/v1/disks/vm1/forget", json!({"destroy_dirty": "vm1"})),
        (Role::Admin, "POST", "/v1/disks/vm1/own", json!({"confirm": "vm1"})),
        (Role::Admin, "POST", "/v1/pools/main/devices", json!({"path": "/dev/c"})),
        (Role::Admin, "DELETE", "/v1/pools/main/devices/1", Value::Null),
        (Role::Admin, "POST", "/v1/stop", Value::Null),
    ]
}

#[tokio::test]
async fn a_call_needs_its_role() {
    for (needed, method, path, body) in calls() {
        let api = Api::new();
        assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
        for role in ROLES {
            let (status, answer) = api.call_as(role, method, path, body.clone()).await;
            let is_allowed = role >= Some(needed);
            assert_eq!(status != 403, is_allowed, "{method} {path} as {role:?}: {status} {answer}");
            if !is_allowed && method != "HEAD" {
                let error = answer["error"].as_str().unwrap();
                // If an operators' call has an option for admins, a reader is told that the call requires an operator.
                let named = [Role::Reader, Role::Operator, needed];
                let named =
                    named.iter().find(|named| error.contains(&format!("requires the role '{named}'")));
                assert!(named.copied() > role, "{error}");
            }
        }
    }
}

/// Checks every path of the API's description, including those that are not in the table above.
#[tokio::test]
async fn no_call_is_open_to_strangers_and_none_that_changes_something_to_readers() {
    let api = Api::new();
    let (_, document) = api.call("GET", "/openapi.json", Value::Null).await;
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{disk}", "vm1").replace("{pool}", "main").replace("{device}", "0");
        let path = path.replace("{job}", "1");
        for method in methods.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            count += 1;
            assert_eq!(api.call_as(None, &method, &path, json!({})).await.0, 403, "{method} {path}");
            if method != "GET" || path.ends_with("/trace") {
                let (status, _) = api.call_as(Some(Role::Reader), &method, &path, json!({})).await;
                assert_eq!(status, 403, "{method} {path}");
            }
        }
    }
    assert!(count > 30, "{count} calls");
}

#[tokio::test]
async fn what_strangers_and_readers_try_pushes_out_no_event_and_what_others_try_is_one() {
    let api = Api::new();
    for role in [None, Some(Role::Reader), Some(Role::Operator)] {
        assert_eq!(api.call_as(role, "POST", "/v1/stop", Value::Null).await.0, 403);
    }
    let (_, events) = api.call("GET", "/v1/events", Value::Null).await;
    let events = events["events"].as_array().unwrap();
    let audited: Vec<_> = events.iter().filter(|event| event["kind"] == "audit").collect();
    assert_eq!(audited.len(), 1, "{audited:?}");
    assert_eq!(audited[0]["message"], "unknown: POST /v1/stop: 403");
    let long = format!("/v1/disks/{}/flush", "x".repeat(50_000));
    assert_eq!(api.call("POST", &long, Value::Null).await.0, 404);
    let (_, events) = api.call("GET", "/v1/events", Value::Null).await;
    assert!(events.to_string().len() < 2_000, "{events}");
}

/// The caller has disconnected while its call was being processed.
#[tokio::test]
async fn a_call_whose_caller_has_gone_is_recorded() {
    let api = Api::new();
    let mut call = Box::pin(api.call("POST", "/v1/disks/vm1/flush", Value::Null));
    assert!(poll_once(call.as_mut()).await.is_pending());
    drop(call);
    for _ in 0..POLLS {
        let (_, events) = api.call("GET", "/v1/events", Value::Null).await;
        if events.to_string().contains("unknown: POST /v1/disks/vm1/flush: 404") {
            return;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    panic!("no event");
}

/// Polls a future once.
async fn poll_once<F: Future + Unpin>(mut future: F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut future).poll(context))).await
}

#[tokio::test]
async fn readers_see_no_secrets() {
    let api = Api::new();
    let mut disk = vm1();
    disk["origin"] = json!("nbd://user:hush@host/vm1");
    api.work("POST", "/v1/disks", disk).await;
    for (role, is_hidden) in [(Role::Reader, true), (Role::Operator, false)] {
        let (status, answer) = api.call_as(Some(role), "GET", "/v1/disks/vm1", Value::Null).await;
        assert_eq!(status, 200);
        let text = answer.to_string();
        assert_eq!(
            (text.contains("hush"), text.contains("user:***@host")),
            (!is_hidden, is_hidden),
            "{text}"
        );
    }
}
