//! `haversack compare-cluster`: rules by which VMs move between the hosts of a cluster.

use std::path::{Path, PathBuf};

use clap::Args;
use haversack_sim::cluster::System;
use haversack_sim::compare_cluster::{
    self as compared, BUILT_IN, ClusterChoices, Scenario, built_in, compare_cluster,
};

use crate::error::{CliError, Result};
use crate::sim::{Bar, refused, write};

/// What to compare.
#[derive(Args)]
pub struct CompareCluster {
    /// Scenarios: TOML files, or those built in: cloudcache-12, step, diurnal, failures, maintenance, lending; see
    /// docs/compare-cluster.md and the folder `mixes/clusters`.
    #[arg(required = true, value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Rules: shared, equal, local, least-variance (CloudCache's), least-latency (ours), haversack-local, haversack,
    /// lending. A scenario without requests has equal, local, least-variance, least-latency and, if its hosts lend,
    /// lending. [default: all that the scenario has]
    #[arg(long, value_delimiter = ',')]
    pub rules: Vec<System>,
    /// Number of hosts, instead of the scenario's.
    #[arg(long, value_name = "N")]
    pub hosts: Option<usize>,
    /// Seeds of all random numbers: a number, or several. The workloads of seed 1 are those of the scenario.
    #[arg(long, visible_alias = "seed", value_delimiter = ',', default_value = "1")]
    pub seeds: Vec<u64>,
    /// Number of clusters simulated in parallel; 0 for the number of processors.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Write an HTML page with charts to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write all results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
}

/// Reads a scenario: a file, or else one that is built in.
fn read(path: &Path) -> Result<Scenario> {
    let usage = |error: &dyn std::fmt::Display| CliError::Usage(format!("{}: {error}", path.display()));
    let known = path.to_str().and_then(built_in).filter(|_| !path.exists());
    let text = match known {
        Some(text) => text.to_owned(),
        None => std::fs::read_to_string(path).map_err(|error| {
            let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            usage(&format!("{error}; built in are {}", names.join(", ")))
        })?,
    };
    let keys: toml::Table = toml::from_str(&text).map_err(|error| usage(&error))?;
    // Only a mix has disks. Parse the file as a mix then, so that the error names a line.
    let scenario = if keys.contains_key("disk") {
        toml::from_str(&text).map(|mix| Scenario::Traced(Box::new(mix)))
    } else {
        toml::from_str(&text).map(|model| Scenario::Model(Box::new(model)))
    };
    scenario.map_err(|error| usage(&error))
}

/// Runs the command.
pub fn run(arguments: &CompareCluster, as_json: bool) -> Result<()> {
    let choices = ClusterChoices {
        systems: arguments.rules.clone(),
        seeds: arguments.seeds.clone(),
        threads: arguments.threads,
    };
    let mut scenarios = Vec::new();
    for path in &arguments.scenarios {
        let scenario = read(path)?;
        let scenario = arguments.hosts.map_or(Ok(scenario.clone()), |hosts| scenario.with_hosts(hosts));
        scenarios.push((path.parent().unwrap_or(Path::new(".")), scenario.map_err(refused)?));
    }
    let (bar, count) = (Bar::new()?, scenarios.len() as f64);
    let mut comparisons = Vec::new();
    for (done, (folder, scenario)) in scenarios.iter().enumerate() {
        let progress = |stage, part| bar.show(stage, (done as f64 + part) / count);
        comparisons.push(compare_cluster(scenario, folder, &choices, &progress).map_err(refused)?);
    }
    bar.end();
    write(arguments.html.as_ref(), || compared::page(&comparisons).to_html())?;
    let goals: Vec<_> = comparisons.iter().map(compared::goals).collect();
    let value = serde_json::json!({ "comparisons": comparisons, "goals": goals });
    let json = serde_json::to_string_pretty(&value).map_err(|error| CliError::Failed(error.to_string()))?;
    write(arguments.json_file.as_ref(), || format!("{json}\n"))?;
    if as_json {
        println!("{json}");
        return Ok(());
    }
    for (comparison, goals) in comparisons.iter().zip(&goals) {
        println!("{}\n", comparison.scenario.title());
        println!("{}", compared::table(comparison).to_text());
        println!("{}", compared::goals_table(goals).to_text());
        if let Some(table) = compared::moves_table(comparison) {
            println!("{}", table.to_text());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_scenarios_are_valid_and_others_are_named() {
        for (name, _) in BUILT_IN {
            read(Path::new(name)).unwrap().check().unwrap();
        }
        let error = read(Path::new("worst-case")).unwrap_err().to_string();
        assert!(error.contains("worst-case") && error.contains("cloudcache-12"), "{error}");
        let many = read(Path::new("step")).unwrap().with_hosts(7).unwrap();
        assert!(matches!(many, Scenario::Model(scenario) if scenario.hosts == 7));
        assert!(read(Path::new("cloudcache-12")).unwrap().with_hosts(7).is_err());
    }
}
