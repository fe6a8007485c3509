//! A figure's load: generated, or with the user's real MSR traces in place of volumes like them; and what is assumed of
//! it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use haversack_api::Span;
use haversack_sim::mix::{Load, Mix};
use haversack_trace::generate::{Generator, Pattern};

use crate::error::NoTraces;
use crate::recipe::Real;

/// The name of a preset of an MSR volume begins with this.
const MSR: &str = "msr:";
/// Endings of a trace file's name.
const ENDINGS: [&str; 6] = ["csv", "csv.gz", "csv.zst", "csv.xz", "hvt", "parquet"];

/// A load, ready to be played.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The mix.
    pub mix: Mix,
    /// Whether real traces replace all volumes that imitate real ones.
    pub is_real: bool,
}

impl Workload {
    /// The mix with real traces from this folder, if one is given and the mix has volumes like real ones.
    ///
    /// # Errors
    /// The folder lacks a trace.
    pub fn new(mut mix: Mix, real: &Real, folder: Option<&Path>) -> Result<Workload, NoTraces> {
        let is_like = mix.disks.iter().any(|load| msr(load).is_some());
        let Some(folder) = folder.filter(|_| is_like) else { return Ok(Workload { mix, is_real: false }) };
        let mut missing = Vec::new();
        for load in &mut mix.disks {
            let Some(volume) = msr(load) else { continue };
            match file(folder, volume) {
                Some(path) => become_real(load, path, real),
                None => missing.push(volume.to_string()),
            }
        }
        if !missing.is_empty() {
            return Err(NoTraces { volumes: missing, directory: folder.to_path_buf() });
        }
        mix.window_s = real.window_s.or(mix.window_s);
        Ok(Workload { mix, is_real: true })
    }

    /// The assumptions about the load, one sentence each, with the conclusions that they rule out.
    pub fn assumptions(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        let like: Vec<&str> = self.mix.disks.iter().filter_map(|load| load.like.as_deref()).collect();
        if !like.is_empty() {
            sentences.push(format!(
                "Generated volumes like {}: requests, reads and writes, blocks and footprints are in the proportions of the real \
                 volumes' published figures, brought to the size and time of this page. Reuse distances of MSR volumes are \
                 assumed: uniform on a logarithmic scale from 64 blocks to the footprint. So the shape of a curve of hits, and \
                 any ranking of systems that rests on it, such as useful against traditional reuse distances, is that of the \
                 assumption. Times of day are not imitated. With --msr this page uses the real traces.",
                like.join(", ")
            ));
        }
        let kinds: BTreeSet<String> = self.mix.disks.iter().filter_map(described).collect();
        if !kinds.is_empty() {
            sentences.push(format!(
                "Generated loads, no recordings: {}. Who gains, and how much, follows from these patterns; the paper's own loads \
                 may have others.",
                kinds.into_iter().collect::<Vec<_>>().join("; ")
            ));
        }
        let real: Vec<&str> =
            self.mix.disks.iter().filter(|load| load.trace.is_some()).map(Load::name).collect();
        if !real.is_empty() {
            sentences.push(format!("Real traces: {}.", real.join(", ")));
        }
        sentences
    }
}

/// The MSR volume that a load is like.
fn msr(load: &Load) -> Option<&str> {
    load.like.as_deref()?.strip_prefix(MSR)
}

fn become_real(load: &mut Load, path: PathBuf, real: &Real) {
    load.trace = Some(path);
    load.like = None;
    load.seconds = None;
    load.seed = Load::SEED;
    load.requests = real.requests;
    load.span = real.span.filter(|span| *span != Span::default());
}

/// A volume's trace file: in the folder, or in one within it.
fn file(folder: &Path, volume: &str) -> Option<PathBuf> {
    let within = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = within.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.insert(0, folder.to_path_buf());
    let files = folders
        .iter()
        .flat_map(|folder| ENDINGS.iter().map(move |ending| folder.join(format!("{volume}.{ending}"))));
    // A mix's paths are relative to a folder of its own.
    files.filter(|path| path.is_file()).find_map(|path| std::path::absolute(path).ok())
}

/// A generated load in words.
fn described(load: &Load) -> Option<String> {
    let first = load.generator.as_ref()?;
    let parts: Vec<String> = std::iter::once(first).chain(&load.then).map(pattern).collect();
    Some(format!("{}: {}", load.name(), parts.join(", then ")))
}

fn pattern(generator: &Generator) -> String {
    let what = match &generator.pattern {
        Pattern::Uniform => "every block equally likely".into(),
        Pattern::Zipf { theta } => format!("Zipf popularity, theta {theta}"),
        Pattern::Zoned { zones } => {
            let zones: Vec<String> =
                zones.iter().map(|zone| format!("{}/{}", zone.requests_percent, zone.size_percent)).collect();
            format!("zones of popularity {}", zones.join(":"))
        }
        Pattern::Scan { .. } => "a scan".into(),
        Pattern::Ycsb { workload } => format!("YCSB {workload:?}"),
        Pattern::BootStorm { .. } => "machines of one image that start".into(),
        Pattern::Backup { theta, share } => {
            format!(
                "Zipf popularity, theta {theta}, joined by a backup that makes {} % of requests",
                share * 100.0
            )
        }
        Pattern::Phases { phases, working_set, theta } => {
            format!(
                "{phases} working sets of {working_set} blocks, one after the other, theta {theta} within"
            )
        }
        Pattern::Diurnal { theta, period_s, .. } => {
            format!("Zipf popularity, theta {theta}, at a rate with a period of {period_s} s")
        }
    };
    format!(
        "{what}, {} blocks, {} requests at {} a second, {:.0} % reads",
        generator.blocks,
        generator.requests,
        generator.rate,
        generator.mix.read * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix() -> Mix {
        let text = "title = \"t\"\nwindow-s = 30.0\n[[disk]]\nname = \"web\"\nlike = \"msr:web_0\"\nrequests = 10\nseconds = 5.0\n\
                    [[disk]]\nname = \"z\"\ngenerator = { pattern = { kind = \"zipf\", theta = 0.5 }, blocks = 10, volumes = 1, \
                    requests = 10, rate = 1.0, seed = 1 }\n";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn real_traces_replace_volumes_like_them() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("msr-cambridge1")).unwrap();
        let path = folder.path().join("msr-cambridge1/web_0.csv.gz");
        std::fs::write(&path, "").unwrap();
        let real = Real { requests: Some(7), window_s: Some(600.0), ..Real::default() };
        let workload = Workload::new(mix(), &real, Some(folder.path())).unwrap();
        let load = &workload.mix.disks[0];
        assert_eq!((load.trace.as_ref(), load.like.as_ref(), load.seconds), (Some(&path), None, None));
        assert_eq!((load.requests, workload.mix.window_s, workload.is_real), (Some(7), Some(600.0), true));
        assert!(workload.mix.disks[1].generator.is_some());
    }

    #[test]
    fn volumes_without_a_trace_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Workload::new(mix(), &Real::default(), Some(folder.path())).unwrap_err();
        assert_eq!(error.volumes, ["web_0"]);
    }

    #[test]
    fn assumptions_are_those_of_the_loads() {
        let workload = Workload::new(mix(), &Real::default(), None).unwrap();
        let sentences = workload.assumptions();
        assert!(sentences[0].contains("msr:web_0") && sentences[0].contains("assumed"), "{sentences:?}");
        assert!(sentences[1].contains("z: Zipf popularity, theta 0.5, 10 blocks"), "{sentences:?}");
        assert_eq!(sentences.len(), 2);
    }
}
