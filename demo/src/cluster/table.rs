//! What is shown: the load of each host, and how the VMs fare.

use std::fmt::Write;

const MIB: f64 = 1048576.0;

/// What was measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// The hosts.
    pub hosts: Vec<HostFigures>,
    /// The VMs, by name.
    pub vms: Vec<VmFigures>,
}

/// What was measured of a host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostFigures {
    /// Its name.
    pub name: String,
    /// What its VMs demand, as a part of its cache.
    pub load: f64,
    /// Its VMs.
    pub vms: Vec<String>,
}

/// What was measured of a VM.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VmFigures {
    /// Its name.
    pub name: String,
    /// The host that it is on.
    pub host: String,
    /// What its disk could use.
    pub demand_bytes: u64,
    /// The part of the blocks read that came from the cache.
    pub hits: Option<f64>,
    /// The mean latency of its reads and writes.
    pub latency_us: Option<f64>,
    /// Reads and writes a second.
    pub requests_per_s: f64,
}

/// The tables of one time.
pub fn now(figures: &Figures) -> String {
    let mut out = format!("{:<8} {:>6}  VMS\n", "HOST", "LOAD");
    for host in &figures.hosts {
        // Writing into a string does not fail.
        let _ = writeln!(out, "{:<8} {:>6}  {}", host.name, percent(Some(host.load)), host.vms.join(" "));
    }
    let _ = writeln!(
        out,
        "\n{:<8} {:<8} {:>9} {:>6} {:>11} {:>6}",
        "VM", "HOST", "DEMAND", "HITS", "LATENCY", "REQ/S"
    );
    for vm in &figures.vms {
        let _ = writeln!(
            out,
            "{:<8} {:<8} {:>5.1} MiB {:>6} {:>11} {:>6.0}",
            vm.name,
            vm.host,
            vm.demand_bytes as f64 / MIB,
            percent(vm.hits),
            milliseconds(vm.latency_us),
            vm.requests_per_s
        );
    }
    out
}

/// The tables of two times, side by side.
pub fn comparison(before: &Figures, after: &Figures) -> String {
    let mut out = format!("{:<8} {:>6} {:<18} {:>6} {}\n", "HOST", "LOAD", "VMS", "LOAD", "VMS");
    for (before, after) in before.hosts.iter().zip(&after.hosts) {
        // Writing into a string does not fail.
        let _ = writeln!(
            out,
            "{:<8} {:>6} {:<18} {:>6} {}",
            before.name,
            percent(Some(before.load)),
            before.vms.join(" "),
            percent(Some(after.load)),
            after.vms.join(" ")
        );
    }
    let _ = writeln!(
        out,
        "\n{:<8} {:<8} {:>6} {:>11}   {:<8} {:>6} {:>11}",
        "VM", "HOST", "HITS", "LATENCY", "HOST", "HITS", "LATENCY"
    );
    for before in &before.vms {
        let after = after.vms.iter().find(|after| after.name == before.name).cloned().unwrap_or_default();
        let _ = writeln!(
            out,
            "{:<8} {:<8} {:>6} {:>11}   {:<8} {:>6} {:>11}",
            before.name,
            before.host,
            percent(before.hits),
            milliseconds(before.latency_us),
            after.host,
            percent(after.hits),
            milliseconds(after.latency_us)
        );
    }
    out
}

fn percent(part: Option<f64>) -> String {
    part.map_or("-".into(), |part| format!("{:.0} %", part * 100.0))
}

fn milliseconds(latency_us: Option<f64>) -> String {
    latency_us.map_or("-".into(), |us| format!("{:.2} ms", us / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(host: &str, load: f64, hits: Option<f64>) -> Figures {
        let host_figures = |name: &str| HostFigures {
            name: name.into(),
            load,
            vms: (name == host).then(|| "vm1".into()).into_iter().collect(),
        };
        let vm = VmFigures {
            name: "vm1".into(),
            host: host.into(),
            demand_bytes: 3 << 20,
            hits,
            latency_us: Some(1500.0),
            requests_per_s: 99.6,
        };
        Figures { hosts: vec![host_figures("alpha"), host_figures("beta")], vms: vec![vm] }
    }

    fn words<'a>(table: &'a str, first: &str) -> Vec<&'a str> {
        table.lines().find(|line| line.starts_with(first)).unwrap_or_default().split_whitespace().collect()
    }

    #[test]
    fn a_table_tells_where_vms_are_and_how_they_fare() {
        let table = now(&figures("alpha", 1.5, Some(0.5)));
        assert_eq!(words(&table, "alpha"), ["alpha", "150", "%", "vm1"], "{table}");
        assert_eq!(
            words(&table, "vm1"),
            ["vm1", "alpha", "3.0", "MiB", "50", "%", "1.50", "ms", "100"],
            "{table}"
        );
    }

    #[test]
    fn a_comparison_has_both_times() {
        let table = comparison(&figures("alpha", 1.5, None), &figures("beta", 0.75, Some(1.0)));
        assert_eq!(words(&table, "alpha"), ["alpha", "150", "%", "vm1", "75", "%"], "{table}");
        let vm = ["vm1", "alpha", "-", "1.50", "ms", "beta", "100", "%", "1.50", "ms"];
        assert_eq!(words(&table, "vm1"), vm, "{table}");
    }
}
