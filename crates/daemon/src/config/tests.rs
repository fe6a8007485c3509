//! What a configuration file may say, and which errors name what is wrong.

use std::path::Path;

use haversack_api::{DiskConfig, Size};
use haversack_control::endurance::Endurance;

use super::Config;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("/etc/haversack/haversackd.toml"), text).map_err(|e| e.to_string())
}

const POOL: &str = "[[pool]]\nname = \"main\"\ndevices = [\"/dev/a\"]\n";

#[test]
fn everything_has_a_default_but_names_devices_and_origins() {
    let config =
        parse(&format!("{POOL}[[disk]]\nname = \"vm1\"\npool = \"main\"\norigin = \"/dev/b\"\n")).unwrap();
    assert_eq!(config.daemon.control_socket(), Path::new("/run/haversack/control.sock"));
    assert_eq!(config.pools[0].staging, Size(64 << 20));
    assert_eq!(config.disks, [DiskConfig::new("vm1", "main", "/dev/b")]);
    assert!(config.nbd.is_none() && config.api.is_none());
}

#[test]
fn a_pool_may_have_a_budget_of_flash_writes() {
    assert_eq!(parse(POOL).unwrap().pools[0].endurance, None);
    let with = |value: &str| parse(&format!("{POOL}endurance = \"{value}\"\n"));
    assert_eq!(with("0.5 DWPD").unwrap().pools[0].endurance, Some(Endurance::DriveWritesPerDay(0.5)));
    assert_eq!(with("500 GB/day").unwrap().pools[0].endurance, Some(Endurance::BytesPerDay(500e9)));
    for wrong in ["a lot", "0 DWPD", "500 GB"] {
        let error = with(wrong).unwrap_err();
        assert!(error.contains("line 4") && error.contains("^") && error.contains("DWPD"), "{error}");
    }
}

#[test]
fn the_packaged_example_is_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/haversackd.toml");
    Config::load(&path).unwrap();
}

#[test]
fn the_packages_configuration_is_valid_and_has_no_pool() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/default.toml");
    let config = Config::load(&path).unwrap();
    assert!(config.pools.is_empty() && config.disks.is_empty());
    assert!(config.nbd.is_some() && config.sandbox.is_some());
}

#[test]
fn the_keys_of_disks_and_the_end_of_the_file_are_known() {
    let disk = |name: &str| format!("[[disk]]\nname = \"{name}\"\npool = \"main\"\norigin = \"/{name}\"\n");
    let text = format!("{POOL}{}mode = \"wt\"\n{}cleaner.age = \"1s\"\n", disk("vm1"), disk("vm2"));
    let config = parse(&text).unwrap();
    let keys = |name: &str| config.keys[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(keys("vm1"), ["mode", "name", "origin", "pool"]);
    assert_eq!(keys("vm2"), ["cleaner", "name", "origin", "pool"]);
    assert_eq!(config.last.as_deref(), Some("vm2"));
    assert_eq!(parse(&format!("{text}[daemon]\n")).unwrap().last, None);
    assert_eq!(parse(POOL).unwrap().last, None);
}

/// Each invalid text, the line that the error must name, and a phrase that the error must contain.
#[test]
fn errors_name_the_line_and_the_remedy() {
    let disk =
        |rest: &str| format!("{POOL}\n[[disk]]\nname = \"vm1\"\npool = \"main\"\norigin = \"/b\"\n{rest}\n");
    let lending = |part: &str| {
        format!(
            "{part}\n[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true\n[[host]]\nname = \"b\"\n\
             address = \"b:1\""
        )
    };
    let cases = [
        (String::new(), 1, "no [[pool]]"),
        ("# nothing\n\n".into(), 1, "complete"),
        ("[[disk]]\nname = \"vm1\"\npool = \"main\"\norigin = \"/b\"\n".into(), 1, "pools: none"),
        (disk("mode = \"wt\"").trim_end().into(), 9, "complete"),
        (format!("\n[daemon]\nremove_disks = [\"vm1\"]\n{}", disk("")), 2, "remove_disks"),
        ("[daemon]\nruntimedir = \"/x\"\n".to_string(), 2, "runtimedir"),
        ("[[pool]]\nname = \"main\"\n".to_string(), 1, "devices"),
        (disk("size = \"10 parsecs\""), 9, "expected bytes"),
        (disk("mode = \"writeback\""), 9, "expected one of wb"),
        (disk("colour = 1"), 9, "colour"),
        (disk("phase = 8"), 5, "0 to 7"),
        (disk("persistence = \"none\""), 5, "lose acknowledged writes"),
        (disk("cleaner = { low_watermark = 0.9 }"), 5, "ordered"),
        (disk("id = \"17\""), 5, "UUID"),
        (disk("size = 1000"), 5, "512"),
        (disk("accept_loss = \"yes\""), 5, "repeat"),
        (disk("vhost_user = \"/dev/a\""), 5, "path /dev/a is used in pool 'main' and in disk 'vm1': change"),
        (format!("{POOL}{POOL}"), 4, "pool name 'main' is used twice in [[pool]]: change"),
        (disk("origin_tls = { ca = \"/ca.pem\" }"), 5, "nbds://"),
        (disk("origin_tls = { key = \"/k\" }").replace("/b", "nbds://h/x"), 5, "both or none"),
        (disk("reservation = \"2GiB\"\nlimit = \"1GiB\""), 5, "below its reservation of 2GiB"),
        (disk("replicate = \"b\""), 5, "hosts there: none"),
        (disk("replicate = \"auto\""), 5, "hosts there: none"),
        (disk("priority = -1.0"), 5, "0 to a million"),
        (disk("priority = 0.0\n[policy]\nallocator = \"wss\""), 10, "sum to zero"),
        (disk("[policy]\nallocator = \"best\""), 9, "max-min"),
        (disk("[policy]\nallocator = \"wss\"\nwindows = \"1s\""), 11, "windows"),
        (disk("[policy]\nallocator = \"wss\"\nwindow = \"1s\"\nmeasurement = \"2s\""), 9, "shorter than"),
        (disk("").replace("pool = \"main\"", "pool = \"mian\""), 5, "pools: main"),
        (disk("").replace("vm1", "a/b"), 5, "letters"),
        (disk("").replace("\"/b\"", "\"gopher:x\""), 5, "gopher"),
        (disk("[[host]]\nname = \"b\"\naddress = \"b:1\""), 9, "[migration]"),
        (disk("[[host]]\nname = \"b\"\naddress = \"b\""), 9, "HOST:PORT"),
        (disk("[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]"), 9, "authority"),
        (disk("[migration]\nname = \"a\"\nlisten = []\ninsecure = true"), 9, "ADDRESS:PORT"),
        (
            disk("[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true\nkey = \"/k\""),
            9,
            "exclude each other",
        ),
        (
            disk(
                "[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true\n[[host]]\n\
                 name = \"A\"\naddress = \"b:1\"",
            ),
            9,
            "named twice",
        ),
        (disk("[lend]\npool = \"main\"\ncapacity = \"1GiB\""), 9, "needs [migration]"),
        (disk("[borrow]\nfrom = [\"b\"]"), 9, "needs [migration]"),
        (
            disk(
                "[borrow]\nfrom = [\"b\"]\n[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true",
            ),
            9,
            "from names host 'b', which is not in the configuration",
        ),
        (
            disk(
                "[borrow]\nfrom = \"auto\"\n[migration]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\ninsecure = true",
            ),
            9,
            "needs [cluster]",
        ),
        (disk("[borrow]\nfrom = \"some\""), 10, "expected \"auto\" or a list of hosts"),
        (
            disk(
                "[lend]\npool = \"other\"\ncapacity = \"1GiB\"\n[migration]\nname = \"a\"\n\
                 listen = [\"127.0.0.1:1\"]\ninsecure = true",
            ),
            9,
            "pool = \"other\": there is no such pool",
        ),
        (
            disk(
                "[lend]\npool = \"main\"\ncapacity = \"2MiB\"\n[migration]\nname = \"a\"\n\
                 listen = [\"127.0.0.1:1\"]\ninsecure = true",
            ),
            9,
            "capacity = \"2MiB\" is too small to lend anything: give 4MiB",
        ),
        (disk(&lending("[lend]\npool = \"main\"\ncapacity = \"1GiB\"\nto = []")), 9, "to = [] names no host"),
        (disk(&lending("[borrow]\nfrom = []")), 9, "from = [] names no host"),
        (disk(&lending("[borrow]\nfrom = [\"b\"]\ndisks = []")), 9, "disks = [] names no disk"),
        (disk(&lending("[borrow]\nfrom = [\"b\"]\ndisks = [\"a/b\"]")), 9, "disks: "),
        (disk("[cluster]\nendpoints = [\"https://e:1\"]\nname = \"a\""), 9, "authority"),
        (disk("[cluster]\nendpoints = [\"http://e:1\"]\ninsecure = true"), 9, "name is missing"),
        (disk("[cluster]\nendpoints = [\"e:1\"]\nname = \"a\"\ninsecure = true"), 9, "endpoints: 'e:1'"),
        (disk("[cluster]\nendpoints = []\nname = \"a\"\ninsecure = true"), 9, "endpoints: no endpoint"),
        (
            disk("[cluster]\nendpoints = [\"https://e:1\"]\nname = \"a\"\nauthority = \"/ca\"\nkey = \"/k\""),
            9,
            "both or none",
        ),
        (
            disk("[cluster]\nendpoints = [\"http://e:1\"]\nname = \"a\"\ninsecure = true\nlease = \"1s\""),
            9,
            "3s or more",
        ),
        (
            disk(
                "[cluster]\nendpoints = [\"http://e:1\"]\nname = \"b\"\ninsecure = true\n[migration]\nname = \"a\"\n\
                 listen = [\"127.0.0.1:1\"]\ninsecure = true",
            ),
            9,
            "leave it out here",
        ),
        (disk("[api]\nlisten = \"[::1]:1\"\ncertificate = \"/c\"\nkey = \"/k\""), 9, "authenticate"),
        (disk("[access.reader]\ngroups = []"), 9, "reader"),
        (disk("[access.admins]\ncertificates = [\"ops.example\"]"), 9, "client_ca"),
        (disk("[access.admins]\ncertificates = [\"o ps\"]"), 10, "expected a DNS name"),
        (disk("[sandbox]\npaths = [\"images\"]"), 9, "absolute path"),
        (disk("[sandbox]\npaths = [\"/\"]"), 9, "leave [sandbox] out"),
        (disk("[sandbox]\npath = [\"/a\"]"), 10, "paths"),
        ("[nbd]\nlisten = [\"/tmp/x\"]\n".to_string(), 2, "expected unix:/PATH"),
        ("\n[nbd]\nlisten = []\n".to_string(), 2, "listens nowhere"),
        ("[nbd]\nlisten = [\"tcp:[::1]:1\"]\nmax_negotiations = 0\n".to_string(), 1, "at least 1"),
        ("[nbd]\nlisten = [\"tcp:[::1]:1\"]\ntls_required = true\n".to_string(), 1, "tls_key"),
        ("[nbd]\nlisten = [\"tcp:[::1]:1\"]\ntls_client_ca = \"/ca\"\n".to_string(), 1, "tls_key"),
    ];
    for (text, line, word) in cases {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(&format!("line {line}")) && error.contains(word), "{text}\n{error}");
        assert!(error.starts_with("/etc/haversack/haversackd.toml: "), "{error}");
    }
}

/// Origins are compared by name when the daemon starts: looking one up may take forever.
#[test]
fn two_names_of_an_origin_are_noticed_only_if_files_may_be_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let [config, image, link] = ["c.toml", "image", "link"].map(|name| directory.path().join(name));
    std::fs::write(&image, "").unwrap();
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let disk = |name: &str, origin: &Path| {
        format!("[[disk]]\nname = \"{name}\"\npool = \"main\"\norigin = \"{}\"\n", origin.display())
    };
    let write = |origin: &Path| {
        let text = format!("{POOL}\n{}{}", disk("vm1", &image), disk("vm2", origin));
        std::fs::write(&config, text).unwrap();
    };
    write(&link);
    assert_eq!(Config::load(&config).unwrap().disks.len(), 2);
    assert!(Config::load_thoroughly(&config).unwrap_err().to_string().contains("one writer"));
    write(&image);
    assert!(Config::load(&config).unwrap_err().to_string().contains("one writer"));
}
