//! The commands that the documents show do what is shown: each page's are run as they are printed, in order, on a host
//! of their own, in which everything is private (`tests/documented/enter.sh`). `tests/documented/PAGE.sh` prepares what
//! a page presumes, such as images and a running daemon. Commands that cannot be run there are in the table
//! [`ELSEWHERE`], with what runs them.

mod elsewhere;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use elsewhere::{ELSEWHERE, Elsewhere};
use haversack_e2e::ceph::Ceph;
use haversack_e2e::documents::{self, Shown};
use haversack_e2e::error::check;
use haversack_e2e::{Error, Place, Result, network::Network, test, tools};

/// If fewer commands than this are found, the search no longer fits the documents.
const LEAST_COMMANDS: usize = 200;
/// How long all commands of a page may take, on a busy machine.
const PAGE_LIMIT: Duration = Duration::from_secs(1200);
/// More than any network here has.
const MBITS: u32 = 10_000;

/// Defines a test for each page whose commands are run.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        /// The pages whose commands are run.
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $name() {
                test($page, |place| run(place, $page));
            }
        )*
    };
}

pages! {
    analyze: "docs/analyze.md",
    auto: "docs/auto.md",
    cluster: "docs/cluster.md",
    compare_cluster: "docs/compare-cluster.md",
    compare_migration: "docs/compare-migration.md",
    control_loop: "docs/control-loop.md",
    command_line: "docs/cli.md",
    generators: "docs/generators.md",
    migration: "docs/migration.md",
    nbd: "docs/nbd.md",
    origins: "docs/origins.md",
    policies: "docs/policies.md",
    proxmox: "docs/proxmox.md",
    qemu_and_libvirt: "docs/qemu-libvirt.md",
    quick_start: "docs/quick-start.md",
    readme: "README.md",
    reproduce: "docs/reproduce.md",
    runbooks: "docs/runbooks.md",
    security: "docs/security.md",
    simulator: "docs/simulator.md",
    sizing: "docs/sizing.md",
    snapshots: "docs/snapshots.md",
    trace: "docs/trace.md",
    ublk: "docs/ublk.md",
}

#[test]
fn every_command_is_run_or_accounted_for() {
    test("commands of the documents", |place| {
        let mut wrong = String::new();
        let mut used = vec![false; ELSEWHERE.len()];
        let (mut run, mut elsewhere) = (0, 0);
        for shown in documents::pages()?
            .iter()
            .map(|page| documents::commands(page))
            .collect::<Result<Vec<_>>>()?
            .concat()
        {
            match ELSEWHERE.iter().position(|row| row.is_of(&shown)) {
                Some(row) => {
                    used[row] = true;
                    elsewhere += 1;
                }
                None if PAGES.contains(&shown.page.as_str()) => run += 1,
                None => {
                    let _ = writeln!(wrong, "{}:{}: nothing runs: {}", shown.page, shown.line, shown.text);
                }
            }
        }
        for (row, used) in ELSEWHERE.iter().zip(used) {
            if !used {
                let _ = writeln!(wrong, "{}: no command begins with: {}", row.page, row.begins);
            }
            if let Err(error) = row.check() {
                let _ = writeln!(wrong, "{}: {}: {error}", row.page, row.begins);
            }
        }
        place.say(&format!("{run} commands are run here, {elsewhere} elsewhere"));
        check(wrong.is_empty(), &wrong)?;
        check(
            run + elsewhere >= LEAST_COMMANDS,
            "too few commands are found: does the search still fit the documents?",
        )
    });
}

/// Runs a page's commands, and checks how they end and what they print.
fn run(place: &Place, page: &str) -> Result<()> {
    let shown = documents::commands(page)?;
    let here = |shown: &&Shown| !ELSEWHERE.iter().any(|row| row.is_of(shown));
    check(shown.iter().any(|shown| here(&shown)), "none of the page's commands is run")?;
    let script = place.path("commands.sh");
    write_script(place, page, &shown, &script)?;
    let uses_ceph = shown.iter().filter(here).any(|shown| shown.text.contains("rbd"));
    let network = if uses_ceph { Some(Network::new(place, 1, MBITS)?) } else { None };
    let _ceph = match &network {
        Some(network) => Some(Ceph::start_in(place, Some(network.namespace(0)))?),
        None => None,
    };
    let programs = tools::own("haversack")?;
    let programs = Path::new(programs.get_program()).parent().unwrap_or(Path::new(".")).to_owned();
    // All that runs there ends with the test, whatever becomes of that.
    let mut command = tools::tool("setpriv")?;
    command.args(["--pdeathsig", "KILL", "--", "unshare"]);
    command.args(["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]);
    command.args(if network.is_some() { &[][..] } else { &["--net"] });
    command
        .arg(tools::workspace().join("tests/documented/enter.sh"))
        .arg(place.path(""))
        .arg(programs)
        .arg(&script);
    let command: Command = match &network {
        Some(network) => tools::in_network(&command, &network.namespace(0))?,
        None => command,
    };
    let output = tools::output_within(command, PAGE_LIMIT)?;
    let mut wrong = String::new();
    for shown in shown.iter().filter(here) {
        if let Err(error) = check_command(place, shown) {
            let _ = writeln!(wrong, "{page}:{}: {}\n{error}", shown.line, shown.text);
        }
    }
    let said = output.stdout + &output.stderr;
    check(
        wrong.is_empty() && output.status.success(),
        format!("{wrong}\nthe page's host: {}\n{said}", output.status),
    )
}

/// Writes the script that runs a page's commands after its preparation.
fn write_script(place: &Place, page: &str, shown: &[Shown], script: &Path) -> Result<()> {
    let directory = tools::workspace().join("tests/documented");
    let name = Path::new(page).with_extension("sh");
    let own = directory.join(name.file_name().unwrap_or_default());
    std::fs::create_dir(place.path("out")).map_err(Error::io("out"))?;
    let mut text = format!(
        "set -o pipefail\nOUT={}\n. {}\n",
        place.path("out").display(),
        directory.join("host.sh").display()
    );
    if own.exists() {
        let _ = writeln!(text, ". {}", own.display());
    }
    for shown in shown {
        let how = if ELSEWHERE.iter().any(|row| row.is_of(shown)) { "skip" } else { "run" };
        let _ = writeln!(text, "{how} {} <<'END_OF_COMMAND'\n{}\nEND_OF_COMMAND", shown.line, shown.text);
    }
    std::fs::write(script, text).map_err(Error::io(script.display().to_string()))
}

/// Checks that a command has ended as shown, and has printed what is shown: the last line if it fails, otherwise the
/// only one or, of several, the first without figures, such as a table's heading.
fn check_command(place: &Place, shown: &Shown) -> Result<()> {
    let file = |end: &str| std::fs::read_to_string(place.path(format!("out/{}.{end}", shown.line)));
    let status = file("status").map_err(|_| Error::Check("it was not run, or did not end".into()))?;
    let said = file("out").unwrap_or_default() + &file("err").unwrap_or_default();
    check((status.trim() != "0") == shown.fails(), format!("ended with {}:\n{said}", status.trim()))?;
    let lines: Vec<&String> = shown.output.iter().filter(|line| line.trim() != "...").collect();
    let line = match lines.as_slice() {
        [.., last] if shown.fails() => Some(last),
        [only] => Some(only),
        lines => lines.iter().find(|line| !has_figure(line)),
    };
    let Some(line) = line else { return Ok(()) };
    let found = said.lines().any(|said| without_figures(said) == without_figures(line));
    check(found, format!("the page shows\n{line}\nand it prints\n{said}"))
}

fn has_figure(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

/// Returns the words of a line without figures, and without units of sizes.
fn without_figures(line: &str) -> Vec<&str> {
    let is_unit = |word: &str| ["B", "KiB", "MiB", "GiB"].contains(&word.trim_end_matches(','));
    line.split_whitespace().filter(|word| !has_figure(word) && !is_unit(word)).collect()
}

impl Elsewhere {
    fn is_of(&self, shown: &Shown) -> bool {
        shown.page == self.page && shown.text.starts_with(self.begins)
    }

    /// Checks that what runs the command is there.
    fn check(&self) -> Result<()> {
        let Some((path, part)) = self.by else {
            return check(!self.why.is_empty(), "the table does not say why nothing runs it");
        };
        let text = std::fs::read_to_string(tools::workspace().join(path)).map_err(Error::io(path))?;
        check(text.contains(part), format!("{path} does not contain '{part}'"))?;
        let program =
            self.begins.trim_start_matches("sudo ").trim_start_matches("guest# ").split_whitespace().next();
        let names_it = path == "Makefile"
            || part.starts_with("fn ")
            || program.is_none_or(|program| part.contains(program))
            || self.why.starts_with(part.split(' ').next().unwrap_or(part));
        check(names_it, format!("'{part}' does not run {}", program.unwrap_or_default()))
    }
}
