//! `haversack compare-migration` and `haversack sim --migrate-at`: they simulate a VM that moves with its cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use haversack_api::{Mode, Span};
use haversack_sim::compare_migration::{
    self as compared, MigrationChoices, MigrationComparison, compare_migration, outcome_table, table_of,
};
use haversack_sim::migration::link::Speed;
use haversack_sim::migration::{MigrationTable, Outcome, Role, Setup, VmSetup, simulate};
use haversack_sim::mix::Mix;
use haversack_sim::tape::Tape;
use haversack_sim::{Settings, Sizes, Stage};
use haversack_trace::{Source, open};

use crate::error::{CliError, Result};
use crate::sim::{AdmissionArgument, Bar, LatencyArguments, Sim, refused, warn_of, write};

/// What to compare.
#[derive(Args)]
pub struct CompareMigration {
    /// Mixes of workloads with a `migration` table: TOML files; see docs/compare-migration.md and the folder `mixes`.
    #[arg(required = true, value_name = "MIX")]
    pub mixes: Vec<PathBuf>,
    /// Methods: none, preload, stop-copy, invalidation-filter, on-demand, on-demand-dirty, on-demand-rws, pre-copy.
    /// [default: all]
    #[arg(long, value_delimiter = ',')]
    pub methods: Vec<haversack_sim::migration::Method>,
    /// Speeds of the link between the hosts, such as 10Gbit. [default: the mix's]
    #[arg(long, value_delimiter = ',', value_name = "SPEED")]
    pub link: Vec<Speed>,
    /// Sizes of each host's pool as fractions of the blocks that all workloads access, instead of those in the mix.
    #[arg(long, value_delimiter = ',')]
    pub fractions: Vec<f64>,
    /// Seeds of latencies and generated workloads: a number, or several. The workloads of seed 1 are those of the mix.
    #[arg(long, visible_alias = "seed", value_delimiter = ',', default_value = "1")]
    pub seeds: Vec<u64>,
    /// Number of migrations simulated in parallel; 0 for the number of processors.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Write an HTML page with charts to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the charts of the first mix, size and link to this directory as SVG files.
    #[arg(long, value_name = "DIRECTORY")]
    pub svg: Option<PathBuf>,
    /// Write all results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    #[command(flatten)]
    pub latency: LatencyArguments,
}

/// Options of `sim` that would do nothing in a simulated migration.
const NOT_IN_A_MOVE: [&str; 17] = [
    "policy",
    "block_size",
    "pool",
    "replacement",
    "speed",
    "csv",
    "decisions",
    "align",
    "interval",
    "warm_up",
    "samples",
    "threads",
    "allocator",
    "settings",
    "window",
    "endurance",
    "restart_every",
];

/// A migration in a simulation.
#[derive(Args)]
#[command(next_help_heading = "Migration")]
pub struct MigrationArguments {
    /// Simulate two hosts, and move a VM from one to the other at this time. Each --trace is a VM on the source host.
    #[arg(long, value_name = "TIME", conflicts_with_all = NOT_IN_A_MOVE)]
    pub migrate_at: Option<Span>,
    /// The disk that moves, or the name of its trace file without the extension. [default: the mix's, or the first one]
    #[arg(long, value_name = "DISK", requires = "migrate_at")]
    pub migrate_disk: Option<String>,
    /// What is sent: none, preload, stop-copy, invalidation-filter, on-demand, on-demand-dirty, on-demand-rws or
    /// pre-copy.
    #[arg(long, default_value = "pre-copy", requires = "migrate_at")]
    pub method: haversack_sim::migration::Method,
    /// Speed of the link between the hosts, such as 10Gbit. [default: the mix's, or 10Gbit]
    #[arg(long, value_name = "SPEED", requires = "migrate_at")]
    pub link: Option<Speed>,
}

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(error.to_string())
}

/// Runs `haversack compare-migration`.
pub fn run(arguments: &CompareMigration, as_json: bool) -> Result<()> {
    let mut choices = MigrationChoices {
        links: arguments.link.clone(),
        latency: None,
        seeds: arguments.seeds.clone(),
        threads: arguments.threads,
        ..MigrationChoices::default()
    };
    if !arguments.methods.is_empty() {
        choices.methods.clone_from(&arguments.methods);
    }
    let (bar, count) = (Bar::new()?, arguments.mixes.len() as f64);
    let mut comparisons = Vec::new();
    for (done, path) in arguments.mixes.iter().enumerate() {
        let mut mix = crate::compare::read_mix(path)?;
        if !arguments.fractions.is_empty() {
            mix.fractions.clone_from(&arguments.fractions);
        }
        let of_mix = table_of(&mix).map_err(refused)?.latency.model();
        choices.latency = Some(arguments.latency.over(of_mix));
        let folder = path.parent().unwrap_or(Path::new("."));
        let progress = |stage, part| bar.show(stage, (done as f64 + part) / count);
        comparisons.push(compare_migration(&mix, folder, &choices, &progress).map_err(refused)?);
    }
    bar.end();
    comparisons.iter().for_each(|comparison| warn_of(&comparison.trace.damage));
    write(arguments.html.as_ref(), || compared::page(&comparisons).to_html())?;
    if let (Some(directory), Some(first)) = (&arguments.svg, comparisons.first()) {
        write_pictures(directory, first)?;
    }
    let summaries: Vec<_> = comparisons.iter().map(compared::summaries).collect();
    let goals: Vec<_> = comparisons.iter().map(compared::goals).collect();
    let value = serde_json::json!({ "comparisons": comparisons, "summaries": summaries, "goals": goals });
    let json = serde_json::to_string_pretty(&value).map_err(failed)?;
    write(arguments.json_file.as_ref(), || format!("{json}\n"))?;
    if as_json {
        println!("{json}");
        return Ok(());
    }
    for (comparison, goals) in comparisons.iter().zip(&goals) {
        println!("{}\n", comparison.mix.title);
        println!("{}", compared::table(comparison).to_text());
        println!("{}", compared::goals_table(goals).to_text());
        if let Some(table) = compared::neighbours_table(comparison) {
            println!("{}", table.to_text());
        }
    }
    Ok(())
}

fn write_pictures(directory: &Path, comparison: &MigrationComparison) -> Result<()> {
    std::fs::create_dir_all(directory)
        .map_err(|error| failed(format!("{}: {error}", directory.display())))?;
    for (name, chart) in compared::first_pictures(comparison) {
        write(Some(&directory.join(format!("{name}.svg"))), || chart.to_svg())?;
    }
    Ok(())
}

/// The mix's `migration` table, with the options applied.
fn table(
    arguments: &MigrationArguments,
    at: Span,
    of_mix: Option<&MigrationTable>,
    first: &str,
) -> Result<MigrationTable> {
    let mut table = of_mix.cloned().unwrap_or_else(|| MigrationTable::at(first, at));
    table.at = at;
    if let Some(disk) = &arguments.migrate_disk {
        table.disk.clone_from(disk);
    }
    table.link = arguments.link.unwrap_or(table.link);
    table.check().map_err(refused)?;
    Ok(table)
}

/// Refuses values that a simulated migration cannot use. It has no control loop, and pools of one size.
fn check(arguments: &Sim) -> Result<()> {
    let common = &arguments.common;
    let refuse = |why: &str| Err(CliError::Usage(format!("with --migrate-at: {why}")));
    if common.mode == Some(Mode::Auto) {
        return refuse("--mode auto needs a control loop, which a migration does not have");
    }
    if matches!(common.pool.admission, Some(AdmissionArgument::Rule(_))) {
        return refuse(
            "this --admission needs a control loop, which a migration does not have: give always, learned or reuse(N)",
        );
    }
    if common.blocks.len() + common.size.len() + common.fractions.len() > 1 {
        return refuse("both pools have one size: give one, or use compare-migration");
    }
    Ok(())
}

/// Runs `haversack sim --migrate-at`.
pub fn simulate_one(arguments: &Sim, at: Span, as_json: bool) -> Result<()> {
    check(arguments)?;
    match &arguments.mix {
        Some(path) => of_mix(arguments, at, path, as_json),
        None => of_traces(arguments, at, as_json),
    }
}

fn of_mix(arguments: &Sim, at: Span, path: &Path, as_json: bool) -> Result<()> {
    let mix = arguments.common.mix(path)?;
    let first = mix.disks.first().map_or("", |load| load.name());
    let table = table(&arguments.migration, at, mix.migration.as_ref(), first)?;
    let settings = settings_of(arguments, &mix)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let opener = || mix.open(folder);
    let survey = survey(&opener, &settings)?;
    let latency = arguments.common.latency.over(table.latency.model());
    let setup = Setup::of_mix(&mix, &table, folder, &survey, &settings, &latency).map_err(refused)?;
    let plan = table.plan(arguments.migration.method, mix.speed_up);
    let outcome = simulate(&setup, &plan, arguments.common.seed).map_err(refused)?;
    print(&mix.title, &outcome, arguments, as_json)
}

/// The settings of a mix, with those given on the command line.
fn settings_of(arguments: &Sim, mix: &Mix) -> Result<Settings> {
    let of_mix = mix.settings_of_migration().map_err(refused)?;
    Ok(Settings {
        sizes: arguments.common.sizes().unwrap_or(of_mix.sizes),
        traffic: of_mix.traffic,
        pool: arguments.common.pool_of_mix(of_mix.pool),
        ..arguments.common.settings_without_control(Sizes::Fractions(Vec::new()))
    })
}

type OpenTrace<'a> = dyn Fn() -> std::result::Result<Box<dyn Source>, haversack_sim::SimError> + Sync + 'a;

fn survey(opener: &OpenTrace<'_>, settings: &Settings) -> Result<haversack_sim::tape::Survey> {
    let bar = Bar::new()?;
    let tape = Tape::of(opener, settings, &|part| bar.show(Stage::Survey, part));
    bar.end();
    let survey = tape.map_err(refused)?.survey;
    warn_of(&survey.damage);
    Ok(survey)
}

fn of_traces(arguments: &Sim, at: Span, as_json: bool) -> Result<()> {
    let common = &arguments.common;
    let sizes = common.sizes().ok_or_else(|| {
        CliError::Usage("no pool sizes: give --blocks, --size or --fractions, one of them".into())
    })?;
    let name = |path: &PathBuf| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let names: Vec<String> = common.trace.iter().map(name).collect();
    let first =
        names.first().ok_or_else(|| CliError::Usage("nothing to simulate: give --trace or --mix".into()))?;
    let table = table(&arguments.migration, at, None, first)?;
    let settings = common.settings_without_control(sizes);
    let all = survey(&|| common.open(), &settings)?;
    let options = common.open_options();
    let mut vms = Vec::new();
    let mut owned = BTreeSet::new();
    for (path, name) in common.trace.iter().zip(&names) {
        let options = options.clone();
        let opener = move || Ok(open(path, &options)?);
        let own = survey(&opener, &settings)?.volumes.into_iter().map(|volume| volume.name);
        let own: BTreeSet<String> = own.collect();
        if let Some(volume) = own.intersection(&owned).next() {
            let what = format!(
                "{name}: expected volumes that no other trace has, found '{volume}', which another VM has"
            );
            return Err(CliError::Usage(what));
        }
        owned.extend(own.iter().cloned());
        let role = if *name == table.disk { Role::Moves } else { Role::AtSource };
        vms.push(VmSetup {
            name: name.clone(),
            role,
            depth: None,
            owns: Box::new(move |volume| own.contains(volume)),
            open: Box::new(opener),
        });
    }
    let latency = common.latency.over(table.latency.model());
    let setup = Setup { vms, survey: &all, settings: &settings, latency: &latency };
    let plan = table.plan(arguments.migration.method, common.speed_up.unwrap_or(1.0));
    let outcome = simulate(&setup, &plan, common.seed).map_err(refused)?;
    print(&format!("Migration of {}", table.disk), &outcome, arguments, as_json)
}

/// What a mix with a migration would be simulated with, in words.
#[cfg(test)]
pub(crate) fn told(arguments: &Sim, path: &Path) -> Result<String> {
    check(arguments)?;
    let mix = arguments.common.mix(path)?;
    let at = arguments.migration.migrate_at.expect("it is a migration");
    let table = table(&arguments.migration, at, mix.migration.as_ref(), "a")?;
    // A move has latencies of its own.
    let settings = Settings { latency: None, ..settings_of(arguments, &mix)? };
    let method = arguments.migration.method;
    let latency = arguments.common.latency.over(table.latency.model());
    Ok(format!("{:?}", (mix, settings, table, latency, method)))
}

fn print(title: &str, outcome: &Outcome, arguments: &Sim, as_json: bool) -> Result<()> {
    write(arguments.html.as_ref(), || compared::outcome_page(title, outcome).to_html())?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(outcome).map_err(failed)?);
    } else {
        println!("{title}\n");
        println!("{}", outcome_table(outcome).to_text());
        print!("{}", compared::facts_table(outcome).to_text());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn parsed(more: &[&str]) -> std::result::Result<Box<Sim>, clap::Error> {
        let words = ["haversack", "sim", "--mix", "mix.toml", "--migrate-at", "80s"];
        match Arguments::try_parse_from(words.iter().chain(more))?.command {
            Command::Sim(arguments) => Ok(arguments),
            _ => panic!("it is sim"),
        }
    }

    #[test]
    fn sim_moves_a_mix_with_the_pool_of_compare_migration() {
        let mix: Mix = toml::from_str(include_str!("../../../mixes/cloudcache-web.toml")).unwrap();
        let settings = settings_of(&parsed(&["--seed", "2"]).unwrap(), &mix).unwrap();
        let compared = mix.settings_of_migration().unwrap();
        assert_eq!((settings.pool, settings.mode), (compared.pool, compared.mode));
    }

    #[test]
    fn options_without_a_use_in_a_move_are_refused() {
        for more in [
            "--policy lru",
            "--replacement lru",
            "--csv FILE",
            "--decisions FILE",
            "--speed",
            "--pool main",
            "--samples 9",
            "--restart-every 1s",
            "--allocator urd",
            "--threads 2",
        ] {
            let words: Vec<&str> = more.split(' ').collect();
            let error = parsed(&words).map(|_| ()).expect_err(more);
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{more}: {error}");
        }
        assert!(parsed(&["--link", "1Gbit", "--html", "FILE"]).is_ok());
    }

    #[test]
    fn values_without_a_use_in_a_move_are_refused() {
        let checked = |words: &str| check(&parsed(&words.split(' ').collect::<Vec<_>>()).unwrap());
        for words in ["--mode auto", "--admission hec", "--fractions 0.1,0.2", "--size 1GiB,2GiB"] {
            assert!(matches!(checked(words), Err(CliError::Usage(_))), "{words}");
        }
        for words in ["--mode wt", "--admission reuse(1)", "--fractions 0.1"] {
            assert!(checked(words).is_ok(), "{words}");
        }
    }
}
