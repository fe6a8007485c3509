//! Checks that the daemon accepts the settings in the documentation and in the packaged example.

use std::path::{Path, PathBuf};

use haversack_daemon::config::Config;

/// Pages with settings of other programs: the simulator, which has a test of its own, and the libvirt hook.
const OTHERS: [&str; 4] = ["compare-cluster.md", "compare-migration.md", "policies.md", "qemu-libvirt.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the TOML in a page.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest))
}

/// Parses settings as the daemon does.
fn parsed(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("haversackd.toml"), text).map_err(|error| error.to_string())
}

/// Completes a part of a configuration with what it leaves out.
fn completed(part: &str) -> Result<String, String> {
    let mut table: toml::Table = part.parse().map_err(|error: toml::de::Error| error.to_string())?;
    // The part has keys of a disk without their table.
    if ["origin", "origin_tls", "connections"].iter().any(|key| table.contains_key(*key)) {
        table = toml::Table::from_iter([("disk".into(), toml::Value::Array(vec![table.into()]))]);
    }
    let disks = table.get_mut("disk").and_then(toml::Value::as_array_mut);
    for disk in disks.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
        let origin =
            if disk.contains_key("origin_tls") { "nbds://storage/disk" } else { "nbd://storage/disk" };
        for (key, value) in [("name", "disk"), ("pool", "main"), ("origin", origin)] {
            disk.entry(key).or_insert_with(|| value.into());
        }
    }
    let pool = toml::Table::from_iter([
        ("name".into(), "main".into()),
        ("devices".into(), toml::Value::Array(vec!["/dev/null".into()])),
    ]);
    table.entry("pool").or_insert_with(|| toml::Value::Array(vec![pool.into()]));
    if let Some(cluster) = table.get_mut("cluster").and_then(toml::Value::as_table_mut) {
        cluster.entry("name").or_insert_with(|| "alpha".into());
    }
    let disks = table.get("disk").and_then(toml::Value::as_array);
    let has_replicas = disks.is_some_and(|disks| disks.iter().any(|disk| disk.get("replicate").is_some()));
    if has_replicas || table.contains_key("lend") || table.contains_key("borrow") {
        let hosts = "[migration]\nname = \"alpha\"\nlisten = [\"127.0.0.1:10810\"]\ninsecure = true\n\
                     [[host]]\nname = \"beta\"\naddress = \"127.0.0.1:10811\"\n";
        table.extend(hosts.parse::<toml::Table>().map_err(|error| error.to_string())?);
    }
    if table.contains_key("access") {
        let keys = [("listen", "127.0.0.1:9391"), ("certificate", "/c"), ("key", "/k"), ("client_ca", "/a")];
        let api = keys.map(|(key, value)| (key.into(), toml::Value::from(value)));
        table.entry("api").or_insert_with(|| toml::Table::from_iter(api).into());
    }
    Ok(toml::to_string(&table).map_err(|error| error.to_string())? + "\n")
}

/// Checks a block: as a whole, or each line of it if it lists choices of one key.
fn check(block: &str) -> Result<(), String> {
    match completed(block) {
        Ok(whole) => parsed(&whole).map(|_| ()).map_err(|error| format!("{error}\n{whole}")),
        Err(error) if error.contains("duplicate key") => {
            block.lines().filter(|line| !line.trim().is_empty()).try_for_each(|line| {
                let whole = completed(line)?;
                parsed(&whole).map(|_| ()).map_err(|error| format!("{error}\n{whole}"))
            })
        }
        Err(error) => Err(error),
    }
}

#[test]
fn settings_in_the_documentation_are_taken() {
    let entries = std::fs::read_dir(root().join("docs")).unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".md") || OTHERS.contains(&name) {
            continue;
        }
        for block in blocks(&read(&path)) {
            checked += 1;
            wrong.extend(check(block).err().map(|error| format!("{name}: {error}\n{block}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked >= 14, "found only {checked} blocks");
    assert!(check("[daemon]\nno_such_key = 1\n").is_err() && check("[migration]\nrate = 1\n").is_err());
}

/// Returns whether a comment is a setting: a table's head, or a key and a value.
fn is_setting(comment: &str) -> bool {
    let key = comment.split(" = ").next().unwrap_or_default();
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    comment.starts_with('[') || (comment.contains(" = ") && is_key)
}

/// Returns an example with all settings that are commented out, but for those that contradict others.
fn uncommented(text: &str) -> String {
    /// Alternatives to what the example sets, and keys that need files.
    const LEFT_OUT: [&str; 7] = [
        "listen = [\"unix:/run/haversack/nbd.sock\", ",
        "tls_client_ca",
        "hook = ",
        "id = ",
        "base = ",
        "origin_tls = ",
        "accept_origin_change",
    ];
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(comment) if is_setting(comment) && !LEFT_OUT.iter().any(|left| comment.starts_with(left)) => {
            format!("{comment}\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_packaged_examples_are_taken_with_what_they_comment_out() {
    for name in ["default.toml", "haversackd.toml"] {
        let text = read(&root().join("packaging").join(name));
        parsed(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let whole = uncommented(&text);
        parsed(&whole).unwrap_or_else(|error| panic!("{name}, uncommented: {error}\n{whole}"));
    }
    let all = uncommented(&read(&root().join("packaging/haversackd.toml")));
    assert!(all.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')).count() > 70);
}
