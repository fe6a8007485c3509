//! Budgets of flash writes.

use std::sync::atomic::Ordering;

use haversack_control::endurance::Endurance;
use haversack_daemon::budget::Budgets;
use serde_json::Value;

use crate::fake::Api;

const MINUTE_US: u64 = 60_000_000;

#[tokio::test]
async fn a_budget_that_is_spent_keeps_fills_out_and_is_told_and_outlives_a_restart() {
    let api = Api::new();
    let (daemon, fake) = (&api.daemon, &api.fake);
    let pool = daemon.pool("main").unwrap();
    let (_, status) = api.call("GET", "/v1/pools/main", Value::Null).await;
    assert!(status.get("endurance").is_none(), "{status}");

    let endurance: Endurance = "1 GB/day".parse().unwrap();
    let pace = |budgets: &Budgets, minute: u64| budgets.pace(daemon, pool, endurance, minute * MINUTE_US);
    pace(&daemon.budgets, 1000);
    assert_eq!(*fake.fill_share.lock().unwrap(), Some(1.0));
    fake.written_bytes.store(600_000_000, Ordering::Relaxed);
    pace(&daemon.budgets, 1001);
    assert_eq!(*fake.fill_share.lock().unwrap(), Some(0.0));
    pace(&daemon.budgets, 1002);
    let (_, status) = api.call("GET", "/v1/pools/main", Value::Null).await;
    let shown = &status["endurance"];
    assert_eq!(shown["budget_bytes_per_day"], 1e9);
    assert_eq!(shown["written_bytes"], 600_000_000);
    assert!(shown["balance_bytes"].as_f64().unwrap() < 0.0 && shown["nearly_spent"] == true, "{shown}");
    let (_, events) = api.call("GET", "/v1/events?after=0&wait=10ms", Value::Null).await;
    assert_eq!(events.to_string().matches("budget-nearly-spent").count(), 1, "{events}");

    // Another daemon with the same state, whose devices count from 0 again.
    fake.written_bytes.store(0, Ordering::Relaxed);
    let later = Budgets::default();
    pace(&later, 1003);
    let later = later.status("main").unwrap();
    assert!(later.balance_bytes < 0.0 && later.written_bytes == 600_000_000, "{later:?}");
    assert_eq!(*fake.fill_share.lock().unwrap(), Some(0.0));
}
