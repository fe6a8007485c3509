//! Opening a full pool on a device, as after a kill: all metadata is read, checked and taken over.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use haversack_engine::{OpenPool, PoolSettings};
use rustix::time::{ClockId, clock_gettime};

use crate::live::Place;
use crate::media::SparseMedia;
use crate::table::{self, row};

const ROUNDS: usize = 5;

/// Measures and prints, for a file in each place.
pub fn run(media: &SparseMedia, places: &[PathBuf], metadata_bytes: u64, entries: u64) {
    let mut rows = vec![row(["", "seconds", "MB a second", "processor, seconds"])];
    for inside in places {
        let name = inside.display().to_string();
        match measure(media, inside, entries) {
            Ok((seconds, processor)) => rows.push(row([
                name.as_str(),
                &format!("{seconds:.2}"),
                &format!("{:.0}", metadata_bytes as f64 / 1e6 / seconds),
                &format!("{processor:.2}"),
            ])),
            Err(error) => rows.push(row([name.as_str(), &error.to_string(), "", ""])),
        }
    }
    table::print("opening the same from a file, best of five", &rows);
}

/// Returns the fewest seconds that it took, and the fewest of processor time.
fn measure(media: &SparseMedia, inside: &Path, entries: u64) -> io::Result<(f64, f64)> {
    let place = Place::new(inside)?;
    let device = place.path("cache");
    media.save(&device)?;
    let mut settings = PoolSettings::new("opening", vec![device]);
    settings.staging_path = place.path("staging");
    let (mut seconds, mut processor) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let (start, start_processor) = (Instant::now(), processor_seconds());
        // Dropped without a stop, which is like a kill.
        let (_pool, report) = OpenPool::start(&settings).map_err(io::Error::other)?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
        processor = processor.min(processor_seconds() - start_processor);
        assert_eq!(report.disks[0].cached_blocks, entries, "every entry is cached");
    }
    Ok((seconds, processor))
}

/// Returns the processor time that the process has used.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
