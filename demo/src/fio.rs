//! fio: started with a job file, heard every second.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use haversack_e2e::{Error, Result, tools};
use serde_json::Value;

/// What a job has done since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Done {
    /// Reads and writes that were answered.
    pub ios: u64,
    /// What they took together, in microseconds.
    pub latency_us: f64,
    /// How long the job has run, in milliseconds.
    pub runtime_ms: u64,
}

impl Done {
    /// What was done after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            ios: self.ios.saturating_sub(before.ios),
            latency_us: (self.latency_us - before.latency_us).max(0.0),
            runtime_ms: self.runtime_ms.saturating_sub(before.runtime_ms),
        }
    }

    /// Mean latency, if there was an I/O.
    pub fn mean_us(self) -> Option<f64> {
        (self.ios > 0).then(|| self.latency_us / self.ios as f64)
    }

    /// I/Os a second, if any time has passed.
    pub fn iops(self) -> Option<f64> {
        (self.runtime_ms > 0).then(|| self.ios as f64 * 1000.0 / self.runtime_ms as f64)
    }
}

/// A running fio. It is killed when this is dropped.
pub struct Fio {
    child: Child,
    reports: Receiver<Result<Vec<Done>>>,
}

impl Fio {
    /// Starts fio with a job file; its complaints go to `log`.
    ///
    /// # Errors
    /// If it is missing or cannot be started.
    pub fn start(job_file: &Path, log: &Path) -> Result<Self> {
        let errors = std::fs::File::create(log).map_err(Error::io(log.display().to_string()))?;
        let mut fio = tools::tool("fio")?;
        fio.args(["--output-format=json", "--status-interval=1"]).arg(job_file);
        // Ctrl-C is the demo's to handle.
        fio.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut child = fio.spawn().map_err(Error::io("fio"))?;
        let (sender, reports) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for report in Reports::new(output) {
                    if sender.send(report).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { child, reports })
    }

    /// The next report, one entry a job in the file's order; none when fio has ended.
    ///
    /// # Errors
    /// If fio is silent, ends with an error, or reports one.
    pub fn next(&mut self) -> Result<Option<Vec<Done>>> {
        const LIMIT: Duration = Duration::from_secs(60);
        match self.reports.recv_timeout(LIMIT) {
            Ok(report) => report.map(Some),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::TimedOut { what: "a report of fio".into(), limit: LIMIT })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_err(Error::io("fio"))?;
                if status.success() {
                    return Ok(None);
                }
                Err(Error::Failed {
                    command: "fio".into(),
                    status: status.to_string(),
                    output: "see its log".into(),
                })
            }
        }
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        // It has ended already, if nothing went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The JSON objects in fio's output. Each begins and ends with a brace that is alone on its line; messages lie between.
struct Reports<R> {
    lines: std::io::Lines<BufReader<R>>,
}

impl Reports<ChildStdout> {
    fn new(output: ChildStdout) -> Self {
        Self { lines: BufReader::new(output).lines() }
    }
}

impl<R: std::io::Read> Iterator for Reports<R> {
    type Item = Result<Vec<Done>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut object = String::new();
        loop {
            let line = match self.lines.next()? {
                Ok(line) => line,
                Err(error) => return Some(Err(Error::io("fio's output")(error))),
            };
            if line == "{" || !object.is_empty() {
                object += &line;
                object.push('\n');
            }
            if line == "}" && !object.is_empty() {
                return Some(parse(&object));
            }
        }
    }
}

fn parse(text: &str) -> Result<Vec<Done>> {
    let wrong = |what: &str| Error::Check(format!("fio's report: {what}:\n{text}"));
    let report: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    let jobs = report["jobs"].as_array().ok_or_else(|| wrong("no jobs"))?;
    jobs.iter()
        .map(|job| {
            if job["error"] != 0 {
                return Err(wrong(&format!("job {} failed with error {}", job["jobname"], job["error"])));
            }
            let mut done = Done::default();
            for direction in [&job["read"], &job["write"]] {
                let figure = |value: &Value| value.as_f64().ok_or_else(|| wrong("a figure is missing"));
                let ios = direction["lat_ns"]["N"].as_u64().ok_or_else(|| wrong("a figure is missing"))?;
                done.ios += ios;
                done.latency_us += figure(&direction["lat_ns"]["mean"])? * ios as f64 / 1000.0;
                done.runtime_ms = done.runtime_ms.max(figure(&direction["runtime"])? as u64);
            }
            Ok(done)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(ios: u64, mean_ns: f64, runtime_ms: u64) -> String {
        format!(r#"{{"lat_ns": {{"mean": {mean_ns}, "N": {ios}}}, "runtime": {runtime_ms}}}"#)
    }

    fn report(error: u32, read: &str, write: &str) -> String {
        format!(
            "{{\n\"jobs\": [{{\"jobname\": \"a\", \"error\": {error}, \"read\": {read}, \"write\": {write}}}]\n}}\n"
        )
    }

    fn reports(text: &str) -> Vec<Result<Vec<Done>>> {
        Reports { lines: BufReader::new(text.as_bytes()).lines() }.collect()
    }

    #[test]
    fn reports_are_found_between_messages() {
        let first = report(0, &direction(100, 5e6, 1000), &direction(0, 0.0, 0));
        let second = report(0, &direction(300, 4e6, 2000), &direction(100, 2e6, 1990));
        let found = reports(&format!("fio: connected to NBD server\n{first}fio: a message\n{second}"));
        let [Ok(first), Ok(second)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(first[0], Done { ios: 100, latency_us: 500_000.0, runtime_ms: 1000 });
        let later = second[0].since(first[0]);
        assert_eq!(later, Done { ios: 300, latency_us: 900_000.0, runtime_ms: 1000 });
        assert_eq!((later.mean_us(), later.iops()), (Some(3000.0), Some(300.0)));
    }

    #[test]
    fn nothing_done_has_no_mean() {
        assert_eq!((Done::default().mean_us(), Done::default().iops()), (None, None));
    }

    #[test]
    fn errors_and_gaps_are_told() {
        let idle = direction(0, 0.0, 0);
        let failed = report(5, &idle, &idle);
        let cases = [
            (failed.as_str(), "error 5"),
            ("{\n}\n", "no jobs"),
            ("{\n\"jobs\": [{\"error\": 0}]\n}\n", "missing"),
        ];
        for (text, word) in cases {
            let found = reports(text);
            assert!(
                matches!(&found[..], [Err(error)] if error.to_string().contains(word)),
                "{text}: {found:?}"
            );
        }
    }
}
