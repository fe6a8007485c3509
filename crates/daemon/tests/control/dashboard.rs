//! The dashboard in a real browser, with a fake data path.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use haversack_api::{DiskConfig, DiskState, MigrationStatus};
use haversack_daemon::control::router;
use haversack_daemon::daemon::Disk;
use haversack_model::{ArenaNo, DiskHandle, DiskNo, WriteMode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fake::{Api, POLL_EVERY, POLLS, admin, shown, vm1};

/// How many disks the page must cope with.
const DISKS: u16 = 1000;
/// A part of a disk's name; several of them are too long for a line.
const LONG_NAME: &str = "a-guest-whose-name-goes-on-and-on-";
/// Minutes of history: enough for a forecast.
const MINUTES: u64 = 15;
/// The time limit until the page is painted with all its disks. On an idle machine it takes less than a second; a page
/// whose work grows with the square of the disks takes minutes.
const PAINTED_MS: f64 = 30_000.0;
/// Window sizes in pixels, of a desktop computer and of a telephone.
const DESK: (u32, u32) = (1280, 900);
const TELEPHONE: (u32, u32) = (390, 844);
/// The narrowest window of some versions of Chromium.
const NARROWEST: f64 = 500.0;

/// A daemon with many attached disks. The name of the first is HTML, and that of the second is long.
fn many_disks() -> Api {
    let api = Api::new();
    for number in 0..DISKS {
        let (name, usage_blocks) = match number {
            0 => ("<img src=x>".into(), 100),
            1 => (LONG_NAME.repeat(5), 90),
            _ => (format!("vm{number}"), u64::from(number % 7)),
        };
        let config = DiskConfig::new(&name, "main", &format!("nbd://host/{number}"));
        let disk = Disk::new(config, true, DiskState::Attached).unwrap();
        let handle = DiskHandle::new(ArenaNo(0), DiskNo(number), number.into());
        let mut snapshot = shown(handle, disk.id, &name, 2 << 20, WriteMode::WriteBack);
        snapshot.usage.usage_blocks = usage_blocks;
        (snapshot.stats.read_hits, snapshot.stats.read_misses) = (u64::from(number), 100);
        api.fake.attached.lock().unwrap().push(snapshot);
        api.daemon.insert_disk(&name, Arc::new(disk)).unwrap();
    }
    api
}

/// Adds [`MINUTES`] of history to a daemon, with one block written to flash per minute.
fn add_history(api: &Api) {
    let now = SystemTime::now();
    api.daemon.history.open(&api.daemon.config, now);
    for minute in 0..MINUTES {
        api.fake.attached.lock().unwrap()[0].stats.flash_write_blocks = minute;
        let before_now = Duration::from_secs(60 * (MINUTES - minute));
        api.daemon.history.sample(&api.daemon, now - before_now);
    }
}

/// What the tests put between the browser and the daemon.
#[derive(Clone, Default)]
struct Between {
    /// Whether the page gets the script that measures.
    measures: bool,
    /// What the script has measured.
    measured: Arc<Mutex<Option<String>>>,
    /// Disks that move, of which a daemon without a data path has none.
    moves: Option<Vec<MigrationStatus>>,
    /// Responses of a daemon in a cluster, by path.
    cluster: BTreeMap<&'static str, Value>,
    /// The paths that the browser has asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

async fn pass(State(between): State<Between>, mut request: Request<Body>, next: Next) -> Response {
    request.extensions_mut().insert(admin());
    let path = request.uri().path().to_owned();
    between.asked.lock().unwrap().push(path.clone());
    match (path.as_str(), between.moves) {
        ("/test/measure.js", _) => {
            ([(CONTENT_TYPE, "text/javascript")], include_str!("measure.js")).into_response()
        }
        ("/test/measured", _) => {
            *between.measured.lock().unwrap() = request.uri().query().map(str::to_owned);
            ().into_response()
        }
        (path, _) if between.cluster.contains_key(path) => Json(&between.cluster[path]).into_response(),
        ("/v1/overview", _) if !between.cluster.is_empty() => {
            changed(next.run(request).await, |text| {
                text.replace("\"is_in_cluster\":false", "\"is_in_cluster\":true")
                    .replace("\"shares_flash\":false", "\"shares_flash\":true")
            })
            .await
        }
        ("/v1/migrations", Some(moves)) => Json(moves).into_response(),
        ("/v1/overview", Some(_)) => {
            changed(next.run(request).await, |text| {
                text.replace("\"can_migrate\":false", "\"can_migrate\":true")
            })
            .await
        }
        ("/", _) if between.measures => changed(next.run(request).await, with_script).await,
        _ => next.run(request).await,
    }
}

/// Changes the text of a response.
async fn changed(response: Response, change: fn(&str) -> String) -> Response {
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Response::from_parts(parts, Body::from(change(&text)))
}

/// Adds the script that measures to the page, whose own policy allows scripts from its own server.
fn with_script(page: &str) -> String {
    page.replace("</head>", "<script type=\"module\" src=\"/test/measure.js\"></script>\n</head>")
}

/// Serves a daemon's control API on a port of the loopback interface, as `ssh -L` would.
async fn serve(api: &Api, between: Between) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, _) = tokio::sync::mpsc::channel(1);
    let routes = router(api.daemon.clone(), stop).layer(from_fn_with_state(between, pass));
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    port
}

/// A browser without windows.
fn browser(profile: &Path) -> Command {
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
    ]);
    browser.arg(format!("--user-data-dir={}", profile.display())).stderr(Stdio::null());
    browser
}

const MISSING: &str = "chromium is needed: install Debian's chromium";

/// Opens the page and returns its document after some seconds of virtual time.
async fn document(api: &Api, between: Between) -> String {
    let port = serve(api, between).await;
    let open = move || {
        let profile = tempfile::tempdir().unwrap();
        let mut browser = browser(profile.path());
        browser.args(["--virtual-time-budget=12000", "--dump-dom", &format!("http://127.0.0.1:{port}/")]);
        browser.output().expect(MISSING)
    };
    let output = tokio::task::spawn_blocking(open).await.unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// A browser that shows the page, in real time, until this is dropped.
struct Window {
    process: Child,
    _profile: tempfile::TempDir,
}

impl Window {
    fn open(port: u16, (width, height): (u32, u32)) -> Window {
        let profile = tempfile::tempdir().unwrap();
        let mut browser = browser(profile.path());
        // With a debugging port, the browser runs until it is killed.
        browser.args(["--remote-debugging-port=0", &format!("--window-size={width},{height}")]);
        browser.arg(format!("http://127.0.0.1:{port}/")).stdin(Stdio::null()).stdout(Stdio::null());
        Window { process: browser.spawn().expect(MISSING), _profile: profile }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // The browser may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns what the script in the page measures in a window of this size.
async fn measured(api: &Api, size: (u32, u32)) -> BTreeMap<String, f64> {
    measured_with(api, size, Between { measures: true, ..Between::default() }).await
}

async fn measured_with(api: &Api, size: (u32, u32), between: Between) -> BTreeMap<String, f64> {
    let port = serve(api, between.clone()).await;
    let _window = Window::open(port, size);
    for _ in 0..POLLS {
        let figures = between.measured.lock().unwrap().take();
        if let Some(figures) = figures {
            let pairs = figures.split('&').filter_map(|pair| pair.split_once('='));
            return pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect();
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    panic!("the page was not drawn");
}

fn shows(page: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(page.contains(wanted), "the page does not show '{wanted}':\n{page}");
    }
}

#[tokio::test]
async fn the_dashboard_shows_a_thousand_disks() {
    let api = many_disks();
    api.daemon.events.add("origin-away", "vm7", "<script>document.title = 'taken'</script>");
    add_history(&api);
    let between = Between::default();
    let page = document(&api, between.clone()).await;
    let wanted = [
        "1000 of 1000 disks attached",
        "Show all 1000 disks",
        "vm104",
        "&lt;img src=x&gt;",
        "Shares of the pool",
        "992 more",
        "1.41 drive writes a day",
        "last 3.6 years",
        "origin-away",
        "No curve: nothing measures this disk",
        "No disks move between hosts",
    ];
    shows(&page, &wanted);
    assert!(!page.contains("<img src=x>") && !page.contains("<title>taken"), "names are taken for HTML");
    assert!(page.contains("&lt;script&gt;"), "the event's message is not shown");
    let asked = between.asked.lock().unwrap();
    let times = |path: &str| asked.iter().filter(|asked| *asked == path).count();
    // The page keeps asking, except for what this daemon does not have: other hosts, a cluster, and loans.
    assert!(times("/v1/overview") > 1, "{asked:?}");
    for path in ["/v1/migrations", "/v1/cluster", "/v1/cluster/plan", "/v1/cluster/tenants", "/v1/loans"] {
        assert_eq!(times(path), 0, "{path}: {asked:?}");
    }
}

#[tokio::test]
async fn a_thousand_disks_are_painted() {
    let api = many_disks();
    add_history(&api);
    let figures = measured(&api, DESK).await;
    let (paint, disks) = (figures["paint"], figures["disks"]);
    println!("ms until the first paint, and until that of the disks: {paint} {disks}");
    assert!(
        paint.max(disks) < PAINTED_MS,
        "ms until the first paint, and until that of the disks: {paint} {disks}"
    );
}

#[tokio::test]
async fn a_telephone_shows_the_page_without_scrolling_sideways() {
    let api = many_disks();
    add_history(&api);
    let figures = measured(&api, TELEPHONE).await;
    let (wide, window) = (figures["wide"], figures["window"]);
    println!("the page is {wide} pixels wide in a window of {window}");
    assert!(window <= NARROWEST, "a window of {window} pixels is none of a telephone");
    assert!(wide <= window, "the page is {wide} pixels wide in a window of {window}");
}

/// A guest reads the same blocks again and again, under a policy that measures it.
#[tokio::test]
async fn the_dashboard_draws_a_live_curve_with_the_present_share_and_the_reason() {
    let api = Api::new();
    let policy = json!({"allocator": "rwss", "window": "1s"});
    assert_eq!(api.call("PUT", "/v1/policy", policy).await.0, 200);
    assert_eq!(api.work("POST", "/v1/disks", vm1()).await["state"], "done");
    api.fake.attached.lock().unwrap()[0].usage.usage_blocks = 100;
    haversack_daemon::governed::start(&api.daemon).unwrap();
    let fake = api.fake.clone();
    let guest = tokio::spawn(async move {
        loop {
            fake.reads.lock().unwrap().extend((0..64).chain(0..8));
            tokio::time::sleep(POLL_EVERY * 10).await;
        }
    });
    let mut points = 0;
    for _ in 0..POLLS {
        let (_, curve) = api.call("GET", "/v1/disks/vm1/curve", Value::Null).await;
        points = curve["all"].as_array().map_or(0, Vec::len);
        if points > 1 {
            break;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    assert!(points > 1, "there is no curve");
    let page = document(&api, Between::default()).await;
    guest.abort();
    let curves = page.split_once("id=\"curves\"").map_or("", |(_, rest)| rest);
    let wanted = ["class=\"line c0\"", "class=\"mark\"", "class=\"dot\"", "now 400 KiB", "<p>Policy: "];
    shows(curves, &wanted);
    assert!(!curves.contains("No curve"), "{curves}");
}

/// A disk that moves, or has moved, as the API shows it.
fn moving(disk: &str, state: &str, host: &str, [sent, left, dirty_left]: [u64; 3]) -> MigrationStatus {
    let status = json!({
        "disk": disk, "state": state, "host": host, "method": "pre-copy", "guest_is_here": true, "is_serving": true,
        "sent_bytes": sent, "left_bytes": left, "dirty_left_bytes": dirty_left, "eta_s": 100.0, "passes": 1,
        "is_ready": false, "needed_bytes": 0, "following_bytes": 0, "dirty_bytes": 0
    });
    serde_json::from_value(status).unwrap()
}

#[tokio::test]
async fn the_dashboard_shows_the_disks_that_move() {
    let api = many_disks();
    let mut stuck = moving("vm3", "waiting", "delta", [0; 3]);
    stuck.error = Some("delta does not answer".into());
    let moves = vec![
        moving("vm1", "sending", "beta", [3 << 30, 1 << 30, 512 << 20]),
        moving("vm2", "arriving", "gamma", [1 << 20, 3 << 20, 0]),
        stuck,
        moving("vm4", "here", "epsilon", [0; 3]),
    ];
    let between = Between { moves: Some(moves), ..Between::default() };
    let page = document(&api, between.clone()).await;
    let times = between.asked.lock().unwrap().iter().filter(|path| *path == "/v1/migrations").count();
    assert!(times > 1, "the page has asked for the moves {times} times");
    let page = page.split_once("id=\"moves\"").map_or("", |(_, rest)| rest);
    let cell = |text: &str| format!("<td class=\"words\">{text}</td>");
    let there = cell("this host") + &cell("beta") + &cell("pre-copy") + &cell("75 %, 1 min 40 s left");
    let here = cell("gamma") + &cell("this host") + &cell("pre-copy") + &cell("25 %, 1 min 40 s left");
    shows(page, &[&there, &here, "<td>512 MiB</td>", "vm3: delta does not answer"]);
    assert!(!page.contains("epsilon"), "a disk that is here is among those that move: {page}");
}

/// A cluster of three hosts as the API shows it, with this many disks.
fn cluster(disks: u64) -> BTreeMap<&'static str, Value> {
    let pool = json!({"name": "main", "state": "ok", "capacity_bytes": 100u64 << 30, "demand_bytes": 150u64 << 30,
        "usage_bytes": 90u64 << 30, "dirty_bytes": 1 << 30, "requests_per_s": 812.0, "bytes_per_s": 1e6, "latency_us": 210.0});
    let host = |name: &str, state: &str| json!({"name": name, "state": state, "is_drained": state == "draining", "age_s": 3.0, "disks": 1, "pools": [pool]});
    let directory = json!({"name": "alpha", "endpoint": "http://e:2379", "since_s": 9.0, "is_reported": true,
        "problems": ["disk '<b>': two hosts"]});
    let disk = |number: u64| {
        json!({"name": format!("web{number}"), "id": "1", "host": "beta", "is_host_alive": false, "epoch": 1, "pool": "main",
            "state": "attached", "tenant": "shop", "can_move": true, "size_bytes": 1 << 30, "demand_bytes": number << 20,
            "usage_bytes": 5 << 20, "dirty_bytes": 0, "requests_per_s": 1.0, "age_s": 1.0})
    };
    let under_way = json!({"disk": "web1", "id": "1", "from": "alpha", "to": "beta", "by": "alpha", "state": "sending", "age_s": 65.0,
        "reason": "demand on alpha was too high"});
    let planned = |vm: &str| json!({"vm": vm, "disks": [vm], "from": "alpha", "to": "gamma", "reason": "gamma has room", "copied_bytes": 1, "copy_s": 1.0});
    let loan = json!({"borrower": "beta", "lender": "gamma", "size_bytes": 3u64 << 30, "is_begun": true, "reason": "it is too small"});
    let tenant = json!({"name": "shop", "settings": {"weight": 2.5, "reservation": 0, "limit": 7u64 << 30}, "disks": 2,
        "demand_bytes": 9u64 << 30, "usage_bytes": 1, "share_bytes": 6u64 << 30, "missing_bytes": 0});
    let hosts = [host("alpha", "alive"), host("beta", "away"), host("gamma", "draining")];
    let disks: Vec<Value> = (0..disks).map(disk).collect();
    let lent = json!({"pool": "main", "host": "delta", "disk": "vm9", "loans": 4, "capacity_bytes": 1u64 << 30,
        "used_bytes": 512 << 20, "age_s": 61.0, "asked_blocks": 1000, "hit_blocks": 500});
    let borrowed = json!({"disk": "vm1", "host": "gamma", "state": "paused", "pause_left_s": 3.0, "pauses": 1, "loans": 1,
        "capacity_bytes": 256 << 20, "used_bytes": 64 << 20, "age_s": 5.0, "asked_blocks": 4, "hit_blocks": 3, "ended_loans": 0,
        "latency_us": 260.0});
    let lends = json!({"pool": "main", "capacity_bytes": 50u64 << 30, "promised_bytes": 1u64 << 30, "spare_bytes": 2u64 << 30,
        "taken_back": 12});
    BTreeMap::from([
        (
            "/v1/cluster",
            json!({"directory": directory, "leader": "alpha", "hosts": hosts, "disks": disks, "moves": [under_way]}),
        ),
        (
            "/v1/cluster/plan",
            json!({"directory": directory, "windows": 5, "moves": [planned("web1"), planned("web2")],
                "held": ["beta stays overloaded: no move that is allowed would help"], "loans": [loan],
                "variance_before": 0.1, "variance_after": 0.0}),
        ),
        ("/v1/cluster/tenants", json!([tenant])),
        ("/v1/loans", json!({"lends": [lends], "lent": [lent], "borrowed": [borrowed]})),
    ])
}

#[tokio::test]
async fn the_dashboard_shows_the_cluster_and_its_loans() {
    let api = many_disks();
    let between = Between { cluster: cluster(150), ..Between::default() };
    let page = document(&api, between.clone()).await;
    let page = page.split_once("id=\"cluster-section\"").map_or("", |(_, rest)| rest);
    assert!(!page.starts_with(" hidden"), "the cluster is hidden");
    let state = |text: &str| format!("<span class=\"state {text}\">{text}</span>");
    let cell = |text: &str| format!("<td class=\"words\">{text}</td>");
    let wanted = [
        "Host alpha balances",
        "disk '&lt;b&gt;': two hosts",
        &state("alive"),
        &state("away"),
        &state("draining"),
        "<td>150.0 %</td>",
        "<td>812</td>",
        &(cell("web1") + &cell("alpha") + &cell("beta") + &cell(&state("sending"))),
        &(cell("web2") + &cell("alpha") + &cell("gamma") + &cell(&state("proposed"))),
        "demand on alpha was too high",
        "beta stays overloaded: no move",
        &(cell("beta") + &cell("gamma") + &cell(&state("borrows")) + "<td>3.0 GiB</td>"),
        &cell("shop"),
        "<td>6.0 GiB</td>",
        "Disks of the cluster: 150, the 100 with the highest demand",
        &(cell("web149") + &cell("beta (away)")),
        "Pool main lends 1.0 GiB of 50.0 GiB at most; 2.0 GiB more could be lent now; loans taken back: 12.",
        &(cell("delta") + &cell("vm9")),
        "<td>50 %</td>",
        &(cell("vm1") + &cell("gamma") + &cell(&state("paused"))),
    ];
    shows(page, &wanted);
    assert_eq!(
        page.matches(&cell("web1")).count(),
        1,
        "a move that is under way is shown as proposed as well"
    );
    assert!(!page.contains(&cell("web49")), "more disks are shown than {page}");
    let asked = between.asked.lock().unwrap();
    let times = |path: &str| asked.iter().filter(|asked| *asked == path).count();
    assert!((1..=3).contains(&times("/v1/cluster")), "{asked:?}");
    assert_eq!(times("/v1/cluster/plan"), 1, "{asked:?}");
}

#[tokio::test]
async fn a_telephone_shows_the_cluster_without_scrolling_sideways() {
    let api = many_disks();
    add_history(&api);
    let between = Between { measures: true, cluster: cluster(150), ..Between::default() };
    let figures = measured_with(&api, TELEPHONE, between).await;
    let (wide, window) = (figures["wide"], figures["window"]);
    assert!(window <= NARROWEST && wide <= window, "the page is {wide} pixels wide in a window of {window}");
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
    assert_eq!(asked.len(), 9, "{asked:?}");
    assert_eq!(api.call("GET", "/dashboard/../Cargo.toml", Value::Null).await.0, 404);
}
