//! A monitor's client with different peers: good ones, slow ones, and some that are not monitors.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haversack_qmp::{Address, Capability, Monitor, Phase, QmpError};
use rustix::net;
use serde_json::{Value, json};

const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";
const PATIENCE: Duration = Duration::from_secs(30);
/// For peers that never answer.
const MOMENT: Duration = Duration::from_millis(50);

/// A peer that follows a script with its one client.
struct Peer {
    directory: tempfile::TempDir,
    thread: JoinHandle<()>,
}

impl Peer {
    fn new(run: impl FnOnce(BufReader<UnixStream>) + Send + 'static) -> Peer {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("qmp")).unwrap();
        let thread = std::thread::spawn(move || run(BufReader::new(listener.accept().unwrap().0)));
        Peer { directory, thread }
    }

    fn connect(&self, patience: Duration) -> Result<Monitor, QmpError> {
        Monitor::connect(&Address::Unix(self.directory.path().join("qmp")), patience)
    }

    fn end(self) {
        self.thread.join().unwrap();
    }
}

fn say(stream: &mut BufReader<UnixStream>, text: &str) {
    stream.get_mut().write_all(text.as_bytes()).unwrap();
}

/// Reads a command and returns it.
fn hear(stream: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or(Value::Null)
}

fn answer(stream: &mut BufReader<UnixStream>, answer: &Value) -> Value {
    let heard = hear(stream);
    say(stream, &format!("{}\r\n", json!({ "return": answer, "id": heard["id"] })));
    heard
}

fn greet(stream: &mut BufReader<UnixStream>) {
    say(stream, GREETING);
    answer(stream, &json!({}));
}

#[test]
fn events_come_apart_from_answers() {
    let peer = Peer::new(|mut stream| {
        greet(&mut stream);
        let id = hear(&mut stream)["id"].clone();
        say(&mut stream, "{\"event\": \"STOP\", \"timestamp\": {}}\r\n{\"event\": \"MIGRATION\", ");
        say(&mut stream, "\"data\": {\"status\": \"setup\"}}\r\n{\"return\": 0, \"id\": 777}\r\n");
        say(&mut stream, &format!("{}\r\n", json!({ "return": { "status": "failing" }, "id": id })));
        let id = hear(&mut stream)["id"].clone();
        say(&mut stream, &format!("{}\n", json!({ "error": { "desc": "not now" }, "id": id })));
    });
    let mut monitor = peer.connect(PATIENCE).unwrap();
    assert_eq!(monitor.migration().unwrap().phase, Phase::Other("failing".into()));
    assert_eq!(monitor.next_event(PATIENCE).unwrap().unwrap().name, "STOP");
    let event = monitor.next_event(PATIENCE).unwrap().unwrap();
    assert_eq!((event.name.as_str(), &event.data["status"]), ("MIGRATION", &json!("setup")));
    let refused = monitor.execute("migrate", &json!({ "uri": "tcp:beta:1" })).unwrap_err();
    assert!(refused.to_string().contains("refuses migrate: not now"), "{refused}");
    assert!(!refused.is_gone());
    assert!(monitor.next_event(PATIENCE).unwrap_err().is_gone());
    peer.end();
}

#[test]
fn an_event_is_waited_for_and_no_longer() {
    let peer = Peer::new(|mut stream| {
        greet(&mut stream);
        say(&mut stream, "{\"event\": ");
        hear(&mut stream);
        say(&mut stream, "\"RESUME\"}\n");
        hear(&mut stream);
    });
    let mut monitor = peer.connect(PATIENCE).unwrap();
    monitor.set_patience(MOMENT);
    assert_eq!(monitor.next_event(MOMENT).unwrap(), None, "half of one is none");
    let silent = monitor.execute("query-status", &json!({})).unwrap_err();
    assert!(silent.to_string().contains("query-status"), "{silent}");
    assert_eq!(monitor.next_event(PATIENCE).unwrap().unwrap().name, "RESUME");
    drop(monitor);
    peer.end();
}

#[test]
fn capabilities_are_told_and_set() {
    let peer = Peer::new(|mut stream| {
        greet(&mut stream);
        let all =
            json!([{ "capability": "events", "state": true }, { "capability": "xbzrle", "state": false }]);
        answer(&mut stream, &all);
        answer(&mut stream, &all);
        let heard = answer(&mut stream, &json!({}));
        let wanted = json!([{ "capability": "pause-before-switchover", "state": true }]);
        assert_eq!(heard["arguments"]["capabilities"], wanted);
    });
    let mut monitor = peer.connect(PATIENCE).unwrap();
    assert!(monitor.has(Capability::Events).unwrap());
    assert!(!monitor.has(Capability::PostCopy).unwrap());
    monitor.set(Capability::PauseBeforeSwitchover, true).unwrap();
    peer.end();
}

#[test]
fn what_is_no_monitor_is_refused() {
    let refused = |bytes: &'static [u8]| {
        let peer = Peer::new(move |mut stream| {
            // The client may have disconnected before all is written.
            let _ = stream.get_mut().write_all(bytes);
        });
        let error = peer.connect(PATIENCE).unwrap_err();
        peer.end();
        error.to_string()
    };
    assert!(refused(b"SSH-2.0-OpenSSH_9.2\r\n").contains("SSH-2.0"));
    assert!(refused(b"\xff\xfe\n").contains("not what QEMU's monitor sends"));
    assert!(refused(b"{\"event\": \"STOP\"}\n").contains("instead of a greeting"));
    assert!(refused(b"").contains("closed the connection"));
    assert!(refused(b"no line").contains("no line"));
    static ENDLESS: [u8; 1 << 20] = [b' '; 1 << 20];
    assert!(refused(&ENDLESS).contains("a line of more than"));
}

/// Any number of events is not an answer; the latest few are kept.
#[test]
fn a_monitor_that_keeps_sending_events_is_given_up() {
    const MOST_KEPT: usize = 16;
    let (given_up, is_given_up) = mpsc::channel::<()>();
    let peer = Peer::new(move |mut stream| {
        greet(&mut stream);
        let id = hear(&mut stream)["id"].clone();
        // In quick succession: no read ends within an event, and none has to wait.
        let start = Instant::now();
        while is_given_up.try_recv() == Err(TryRecvError::Empty) && start.elapsed() < PATIENCE {
            say(&mut stream, "{\"event\": \"STOP\"}\n");
            std::thread::sleep(MOMENT / 500);
        }
        say(&mut stream, &format!("{}\n", json!({ "return": {}, "id": id })));
        answer(&mut stream, &json!({ "status": "running" }));
        hear(&mut stream);
    });
    let mut monitor = peer.connect(PATIENCE).unwrap();
    monitor.set_patience(MOMENT);
    let silent = monitor.execute("query-status", &json!({})).unwrap_err();
    assert!(matches!(silent, QmpError::Silent { .. }), "{silent}");
    drop(given_up);
    monitor.set_patience(PATIENCE);
    assert_eq!(monitor.run_state().unwrap(), "running");
    let kept = std::iter::from_fn(|| monitor.next_event(MOMENT).unwrap()).count();
    assert!(kept <= MOST_KEPT, "{kept} events are kept");
    drop(monitor);
    peer.end();
}

/// QEMU's queue of connections has one place.
#[test]
fn a_monitor_whose_queue_is_full_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp");
    let socket = net::socket(net::AddressFamily::UNIX, net::SocketType::STREAM, None).unwrap();
    net::bind(&socket, &net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    net::listen(&socket, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let error = Monitor::connect(&Address::Unix(path), MOMENT).unwrap_err();
    assert!(matches!(error, QmpError::Silent { .. }), "{error}");
}

#[test]
fn a_monitor_with_another_client_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = Monitor::connect(&Address::Unix(path), MOMENT).unwrap_err();
    assert!(error.to_string().contains("one client at a time"), "{error}");
    let error = Monitor::connect(&Address::Unix("/nowhere/qmp".into()), MOMENT).unwrap_err();
    assert!(error.is_gone() && error.to_string().starts_with("/nowhere/qmp: "), "{error}");
    // The path leads through something that is not a directory: nothing is known about a QEMU.
    let error = Monitor::connect(&Address::Unix("/dev/null/qmp".into()), MOMENT).unwrap_err();
    assert!(matches!(error, QmpError::Unreachable { .. }) && !error.is_gone(), "{error}");
}

#[test]
fn a_monitor_is_reached_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let peer = std::thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        stream.get_mut().write_all(GREETING.as_bytes()).unwrap();
        for status in ["", "running"] {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let id = serde_json::from_str::<Value>(&line).unwrap()["id"].clone();
            let text = json!({ "return": { "status": status }, "id": id }).to_string() + "\n";
            stream.get_mut().write_all(text.as_bytes()).unwrap();
        }
    });
    let mut monitor = Monitor::connect(&address, PATIENCE).unwrap();
    assert_eq!(monitor.run_state().unwrap(), "running");
    peer.join().unwrap();
}
