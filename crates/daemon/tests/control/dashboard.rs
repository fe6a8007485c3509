//! The dashboard in a real browser, over a data path that is not there.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::http::Request;
use axum::middleware::{Next, from_fn};
use haversack_api::{DiskConfig, DiskState};
use haversack_daemon::control::router;
use haversack_daemon::daemon::Disk;
use haversack_model::{ArenaNo, DiskHandle, DiskNo, WriteMode};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use crate::fake::{Api, admin, shown};

/// How many disks the page must cope with.
const DISKS: u16 = 1000;

/// A daemon with many attached disks. The name of the first is what nobody should call a disk.
fn many_disks() -> Api {
    let api = Api::new();
    for number in 0..DISKS {
        let name = if number == 0 { "<img src=x>".into() } else { format!("vm{number}") };
        let config = DiskConfig::new(&name, "main", &format!("nbd://host/{number}"));
        let disk = Disk::new(config, true, DiskState::Attached).unwrap();
        let handle = DiskHandle::new(ArenaNo(0), DiskNo(number), number.into());
        let mut snapshot = shown(handle, disk.id, &name, 2 << 20, WriteMode::WriteBack);
        snapshot.usage.usage_blocks = if number == 0 { 100 } else { u64::from(number % 7) };
        (snapshot.stats.read_hits, snapshot.stats.read_misses) = (u64::from(number), 100);
        api.fake.attached.lock().unwrap().push(snapshot);
        api.daemon.insert_disk(&name, Arc::new(disk)).unwrap();
    }
    api
}

/// When a browser asked for the page, and when for the events: that is as soon as the figures are shown.
type Asked = Arc<Mutex<(Option<Instant>, Option<Duration>)>>;

fn note(asked: &Asked, path: &str) {
    let mut asked = asked.lock().unwrap();
    match (path, *asked) {
        ("/", _) => *asked = (Some(Instant::now()), None),
        ("/v1/events", (Some(start), None)) => asked.1 = Some(start.elapsed()),
        _ => {}
    }
}

/// Serves a daemon's control API on a port of the loopback interface, as `ssh -L` would.
async fn serve(api: &Api, asked: Asked) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, _) = tokio::sync::mpsc::channel(1);
    let routes =
        router(api.daemon.clone(), stop).layer(from_fn(move |mut request: Request<Body>, next: Next| {
            request.extensions_mut().insert(admin());
            note(&asked, request.uri().path());
            next.run(request)
        }));
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    port
}

/// Opens the page and returns its document when it has been there for some seconds, of its own time.
fn open(profile: &Path, port: u16) -> String {
    let mut browser = Command::new("chromium");
    browser.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--virtual-time-budget=3000",
        "--dump-dom",
    ]);
    browser.arg(format!("--user-data-dir={}", profile.display()));
    browser.arg(format!("http://127.0.0.1:{port}/")).stderr(Stdio::null());
    let output = browser.output().expect("chromium is needed: install Debian's chromium");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_dashboard_shows_a_thousand_disks() {
    let api = many_disks();
    api.daemon.events.add("origin-away", "vm7", "<script>document.title = 'taken'</script>");
    let now = SystemTime::now();
    api.daemon.history.open(&api.daemon.config, now);
    for minute in 0..5 {
        api.daemon
            .history
            .sample(&api.daemon, now + Duration::from_secs(60 * minute) - Duration::from_secs(300));
    }
    let asked = Asked::default();
    let port = serve(&api, asked.clone()).await;
    let profile = tempfile::tempdir().unwrap();
    let page = tokio::task::spawn_blocking(move || open(profile.path(), port)).await.unwrap();
    let drawn = asked.lock().unwrap().1;
    println!("from the request for the page until the figures were shown: {drawn:?}");
    assert!(drawn.is_some(), "the page was not drawn:\n{page}");
    for wanted in [
        "1000 of 1000 disks attached",
        "Show all 1000 disks",
        "vm104",
        "&lt;img src=x&gt;",
        "Shares of the pool",
        "992 more",
        "origin-away",
        "No curve: nothing measures this disk",
    ] {
        assert!(page.contains(wanted), "the page does not show '{wanted}':\n{page}");
    }
    assert!(!page.contains("<img src=x>") && !page.contains("<title>taken"), "names are taken for HTML");
    assert!(page.contains("&lt;script&gt;"), "the event's message is not shown");
}

#[tokio::test]
async fn the_dashboard_loads_nothing_from_elsewhere() {
    let api = Api::new();
    let mut asked = vec!["/".to_owned()];
    for at in 0.. {
        let Some(path) = asked.get(at).cloned() else { break };
        let (stop, _) = tokio::sync::mpsc::channel(1);
        let request = Request::get(&path).extension(admin()).body(Body::empty()).unwrap();
        let answer = router(api.daemon.clone(), stop).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let policy = answer.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let links = text.split(['"', '\'']).filter(|word| word.ends_with(".js") || word.ends_with(".css"));
        for link in links.map(|link| link.replace("./", "/dashboard/")) {
            if !asked.contains(&link) {
                asked.push(link);
            }
        }
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("://"), "{path} names another place");
    }
    assert_eq!(asked.len(), 7, "{asked:?}");
    assert_eq!(api.call("GET", "/dashboard/../Cargo.toml", Value::Null).await.0, 404);
}
