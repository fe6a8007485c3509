//! Compares `/metrics` with the documentation and with the files shipped for Prometheus and Grafana.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use haversack_daemon::cluster::config::{BalanceConfig, ClusterConfig};
use haversack_daemon::hosts::Hosts;
use haversack_daemon::hosts::config::{HostConfig, MigrationConfig};
use serde_json::json;

use crate::fake::{Api, vm1};

/// A metric as its text describes it.
#[derive(Default)]
struct Described {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

/// Parses metrics in the text format. Those of a histogram are one.
fn parse(text: &str) -> BTreeMap<String, Described> {
    let mut metrics: BTreeMap<String, Described> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!metrics.contains_key(name), "{name} comes twice");
            current = name.into();
            metrics.entry(name.into()).or_default().help = help.into();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            metrics.get_mut(name).unwrap().kind = kind.into();
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            assert!(name.starts_with(&current), "{line}: not below its own heading");
            let keys = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            metrics.get_mut(&current).unwrap().labels.extend(keys.filter(|key| key != "le"));
        }
    }
    metrics
}

/// The metrics of a daemon with a pool, a device, a disk, a policy that has decided once, another host that does not
/// answer, and a cluster whose etcd cannot be reached.
async fn metrics() -> BTreeMap<String, Described> {
    let api = Api::new();
    let policy = json!({"allocator": "rwss", "window": "1s"});
    assert_eq!(api.call("PUT", "/v1/policy", policy).await.0, 200);
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    let migration = json!({"name": "alpha", "listen": ["127.0.0.1:0"], "insecure": true});
    let migration: MigrationConfig = serde_json::from_value(migration).unwrap();
    let beta = HostConfig { name: "beta".into(), address: "127.0.0.1:9".into() };
    api.daemon.set_hosts(Hosts::start(&api.daemon, &migration, &[beta], (None, None), 1).unwrap());
    haversack_daemon::governed::start(&api.daemon).unwrap();
    let cluster = ClusterConfig {
        endpoints: vec!["http://127.0.0.1:9".into()],
        authority: None,
        certificate: None,
        key: None,
        user: None,
        password_file: None,
        insecure: true,
        name: Some("alpha".into()),
        report_every: "1s".parse().unwrap(),
        lease: "3s".parse().unwrap(),
        hook: None,
        hook_time: "1h".parse().unwrap(),
        memory: None,
        processors: None,
        vms: Vec::new(),
        balance: BalanceConfig::default(),
    };
    haversack_daemon::cluster::connect(&api.daemon, &cluster, None).unwrap();
    haversack_daemon::cluster::start(&api.daemon, &cluster, None).unwrap();
    loop {
        let text = haversack_daemon::metrics::text(&api.daemon);
        if text.contains("haversack_disk_rwss_bytes{") {
            return parse(&text);
        }
        // The next records are of a guest that reads the same block twice.
        api.fake.reads.lock().unwrap().extend([7, 7]);
        tokio::time::sleep(crate::fake::POLL_EVERY).await;
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[tokio::test]
async fn every_metric_is_documented_as_it_is() {
    let page = std::fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let documented: BTreeSet<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let rows: BTreeSet<String> = metrics()
        .await
        .iter()
        .map(|(name, metric)| {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{name}` | {} | {} | {} |", metric.kind, labels.join(", "), metric.help)
        })
        .collect();
    let there: BTreeSet<&str> = rows.iter().map(String::as_str).collect();
    let missing: Vec<_> = there.difference(&documented).copied().collect();
    let gone: Vec<_> = documented.difference(&there).copied().collect();
    assert!(missing.is_empty(), "not in docs/metrics.md:\n{}", missing.join("\n"));
    assert!(gone.is_empty(), "in docs/metrics.md, but not exported:\n{}", gone.join("\n"));
}

#[tokio::test]
async fn names_follow_the_conventions() {
    for (name, metric) in metrics().await {
        assert!(name.starts_with("haversack_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == "counter", "{name} is a {}", metric.kind);
        let other = ["us", "ms", "microseconds", "milliseconds", "kib", "mib", "percent"];
        assert!(!name.split('_').any(|part| other.contains(&part)), "{name} is not in base units");
        assert!(metric.help.ends_with('.'), "{name}: {}", metric.help);
    }
}

#[tokio::test]
async fn dashboard_and_alerts_use_metrics_that_exist() {
    let metrics = metrics().await;
    let mut used = 0;
    for file in
        ["prometheus/haversack.rules.yml", "prometheus/haversack.rules.test.yml", "grafana/haversack.json"]
    {
        let text = std::fs::read_to_string(repository().join("packaging").join(file)).unwrap();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':') {
            if !word.starts_with("haversack_") {
                continue;
            }
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
            let is_one = metrics.contains_key(word) || base.is_some_and(|base| metrics.contains_key(base));
            assert!(is_one, "{file} uses {word}, which is not exported");
            used += 1;
        }
    }
    assert!(used > 20, "only {used} uses were found");
}
