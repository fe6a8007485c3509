//! Metrics of the daemon's process, under the names that Prometheus' client libraries use.

use std::fs;

use super::text::Text;

/// Writes the figures of the process. What the system does not tell is left out.
pub fn process(out: &mut Text) {
    let stat = Stat::read();
    let figures = [
        ("process_cpu_seconds_total", "counter", "User and system CPU time.", stat.as_ref().map(|s| s.cpu_s)),
        ("process_open_fds", "gauge", "Open file descriptors.", open_descriptors()),
        ("process_max_fds", "gauge", "Limit on open file descriptors.", limit_of("Max open files")),
        (
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory, with all mappings of guests' memory.",
            stat.as_ref().map(|s| s.virtual_bytes),
        ),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory, with what guests and the daemon share.",
            stat.as_ref().map(|s| s.resident_bytes),
        ),
        ("process_threads", "gauge", "Threads.", stat.as_ref().map(|s| s.threads)),
        (
            "process_start_time_seconds",
            "gauge",
            "Start of the process, in seconds since 1970.",
            stat.as_ref().and_then(Stat::started_s),
        ),
    ];
    for (name, kind, help, value) in figures {
        if let Some(value) = value {
            out.head(name, kind, help);
            out.sample(name, &[], value);
        }
    }
}

/// Values from `/proc/self/stat`: see proc(5).
#[derive(Clone, Copy, PartialEq, Debug)]
struct Stat {
    cpu_s: f64,
    threads: f64,
    /// Start after the host's boot, in seconds.
    start_s: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    fn read() -> Option<Stat> {
        let unit = |name| nix::unistd::sysconf(name).ok().flatten().map(|value| value as f64);
        let (ticks, page) =
            (unit(nix::unistd::SysconfVar::CLK_TCK)?, unit(nix::unistd::SysconfVar::PAGE_SIZE)?);
        Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?, ticks, page)
    }

    /// Parses the line of a process, whose name, the second field, may contain anything.
    fn parse(line: &str, ticks_per_s: f64, page_bytes: f64) -> Option<Stat> {
        let (_, rest) = line.rsplit_once(") ")?;
        // The first of these is field 3, the state.
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.trim().parse::<f64>().ok();
        Some(Stat {
            cpu_s: (field(14)? + field(15)?) / ticks_per_s,
            threads: field(20)?,
            start_s: field(22)? / ticks_per_s,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page_bytes,
        })
    }

    fn started_s(&self) -> Option<f64> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let boot = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        Some(boot.trim().parse::<f64>().ok()? + self.start_s)
    }
}

/// Counts all but the descriptor that the counting needs.
fn open_descriptors() -> Option<f64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

fn limit_of(name: &str) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_parsed() {
        let line =
            "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 1000 8192 3 18446744073709551615";
        let stat = Stat::parse(line, 100.0, 4096.0).unwrap();
        let wanted =
            Stat { cpu_s: 3.0, threads: 9.0, start_s: 10.0, virtual_bytes: 8192.0, resident_bytes: 12288.0 };
        assert_eq!(stat, wanted);
    }

    #[test]
    fn this_process_has_all_figures() {
        let mut out = Text::default();
        process(&mut out);
        assert_eq!(out.into_text().lines().filter(|line| line.starts_with("# TYPE")).count(), 7);
    }
}
