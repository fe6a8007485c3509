//! The four disks and what their guests do all day.

use std::fmt::Write;
use std::path::Path;

/// The size of each disk, in MiB.
pub const DISK_MIB: u64 = 512;

/// A disk and its load.
#[derive(Debug)]
pub struct Workload {
    /// The disk's name, which is also its export's at the origin and at the daemon.
    pub disk: &'static str,
    /// The load in a few words.
    pub load: &'static str,
    /// The load for fio: lines of a job file.
    fio: &'static str,
    /// Lines for the disk's table in the daemon's configuration.
    settings: &'static str,
}

/// The disks, in the order in which they are shown.
pub const WORKLOADS: [Workload; 4] = [
    Workload {
        disk: "database",
        load: "reads, Zipf",
        fio: "rw=randread\nbs=4k\nrandom_distribution=zipf:1.2\niodepth=4\n",
        settings: "",
    },
    Workload {
        disk: "mail",
        load: "writes and fsyncs",
        fio: "rw=randrw\nrwmixread=70\nbs=4k\nrandom_distribution=zipf:1.2\niodepth=4\nfsync=32\n",
        settings: "",
    },
    Workload {
        disk: "web",
        load: "16 MiB hot set",
        fio: "rw=randread\nbs=4k\nsize=16m\niodepth=4\n",
        settings: "",
    },
    Workload {
        disk: "backup",
        load: "sequential scan",
        fio: "rw=read\nbs=128k\niodepth=2\n",
        settings: "sequential_cutoff = \"1MiB\"\n",
    },
];

/// A job file for fio: all loads at once on the exports of the NBD server at `socket`, for `seconds`. Every run
/// accesses the same blocks in the same order.
pub fn job_file(socket: &Path, seconds: u64) -> String {
    let mut text = format!(
        "[global]\nioengine=nbd\nthread=1\ntime_based=1\nruntime={seconds}\nsize={DISK_MIB}m\nnorandommap=1\nrandseed=1\n"
    );
    for Workload { disk, fio, .. } in &WORKLOADS {
        // Writing into a string does not fail.
        let _ = write!(text, "\n[{disk}]\nuri={}\n{fio}", uri(socket, disk));
    }
    text
}

/// The daemon's configuration: everything in `directory`, the origins at the NBD server on `origin`.
pub fn configuration(directory: &Path, pool: &str, origin: &Path) -> String {
    let directory = directory.display();
    let mut text = format!(
        "[daemon]\nruntime_dir = \"{directory}/run\"\nstate_dir = \"{directory}/state\"\n\n\
         [[pool]]\nname = \"{pool}\"\ndevices = [\"{directory}/cache.img\"]\n\n\
         [nbd]\nlisten = [\"unix:{directory}/run/nbd.sock\"]\n"
    );
    for Workload { disk, settings, .. } in &WORKLOADS {
        // Writing into a string does not fail.
        let _ = write!(
            text,
            "\n[[disk]]\nname = \"{disk}\"\npool = \"{pool}\"\norigin = \"{}\"\n\
             vhost_user = \"{directory}/run/{disk}.sock\"\n{settings}",
            uri(origin, disk)
        );
    }
    text
}

/// An export's URI. Paths in the demo's directory need no escapes.
pub fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_runs_differ_only_in_socket_and_time() {
        let uncached = job_file(Path::new("/demo/origin.sock"), 5);
        let cached = job_file(Path::new("/demo/run/nbd.sock"), 60);
        assert_eq!(
            uncached.replace("origin.sock", "run/nbd.sock").replace("runtime=5\n", "runtime=60\n"),
            cached
        );
        assert_eq!(uncached.matches("[").count(), 1 + WORKLOADS.len());
    }

    #[test]
    fn the_configuration_names_every_disk_and_its_origin() {
        let text = configuration(Path::new("/demo"), "demo", Path::new("/demo/origin.sock"));
        for Workload { disk, .. } in &WORKLOADS {
            let origin = format!(
                "name = \"{disk}\"\npool = \"demo\"\norigin = \"nbd+unix:///{disk}?socket=/demo/origin.sock\""
            );
            assert!(text.contains(&origin), "{text}");
        }
        assert!(text.contains("devices = [\"/demo/cache.img\"]"), "{text}");
    }
}
