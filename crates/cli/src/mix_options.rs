//! A mix as `haversack sim` simulates it: the settings of the mix's file, with the options that override them.

use std::path::Path;

use haversack_api::{Admission, DiskConfig, Persistence, Target};
use haversack_policy::{AllocatorRule, Config};
use haversack_sim::mix::Mix;

use crate::error::{CliError, Result};
use crate::sim::{AdmissionArgument, Common, Survives};

impl Common {
    /// Reads a mix, and applies the options that override its settings. An option for disks applies to all disks.
    pub(crate) fn mix(&self, path: &Path) -> Result<Mix> {
        self.check_for_mix()?;
        let mut mix = crate::compare::read_mix(path)?.with_seed(self.seed);
        mix.speed_up = self.speed_up.unwrap_or(mix.speed_up);
        for load in &mut mix.disks {
            self.change(&mut load.config);
        }
        for (name, size) in &self.pool.target {
            let Some(load) = mix.disks.iter_mut().find(|load| load.name() == name) else {
                let known: Vec<&str> = mix.disks.iter().map(|load| load.name()).collect();
                let why = format!("--target: no disk '{name}' in the mix: it has {}", known.join(", "));
                return Err(CliError::Usage(why));
            };
            load.config.target = Target::Bytes(*size);
        }
        Ok(mix)
    }

    /// Refuses what a mix cannot use.
    fn check_for_mix(&self) -> Result<()> {
        let given = [
            ("format", self.format.is_some()),
            ("key-bytes", self.key_bytes.is_some()),
            ("time-unit", self.time_unit.is_some()),
            ("strict", self.strict),
            ("align", self.align),
        ];
        let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
        Err(CliError::Usage(format!(
            "--{option} is for traces: a mix opens its own; leave it out, or give the files with --trace"
        )))
    }

    /// Refuses targets that the policy of a mix would replace with its own at its first decision.
    pub(crate) fn check_targets(&self, control: Option<&Config>) -> Result<()> {
        let replaced = control.is_some_and(|config| !matches!(config.allocator, AllocatorRule::Static));
        if self.pool.target.is_empty() || !replaced {
            return Ok(());
        }
        let why = "--target: this allocator sets all targets itself: add --allocator static";
        Err(CliError::Usage(why.into()))
    }

    fn change(&self, disk: &mut DiskConfig) {
        let pool = &self.pool;
        disk.mode = self.mode.unwrap_or(disk.mode);
        disk.persistence = pool.persistence.map_or(disk.persistence, |survives| match survives {
            Survives::All => Persistence::All,
            Survives::Dirty => Persistence::Dirty,
            Survives::None => Persistence::None,
        });
        disk.admission = match pool.admission {
            None => disk.admission,
            Some(AdmissionArgument::Fixed(admission)) => admission,
            // The size depends on the disk's share, so the policy sets it.
            Some(AdmissionArgument::Rule(_)) => Admission::Auto,
        };
        disk.sequential_cutoff = pool.sequential_cutoff.unwrap_or(disk.sequential_cutoff);
        disk.phase = pool.phase.unwrap_or(disk.phase);
        disk.cleaner = disk.cleaner.changed_by(pool.cleaning);
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::arguments::{Arguments, Command};
    use crate::sim::Sim;

    const MIX: &str = "title = \"two\"\n\
        [[disk]]\nname = \"a\"\nmode = \"wb\"\nadmission = \"always\"\nsequential_cutoff = \"1MiB\"\nphase = 1\n\
        persistence = \"dirty\"\ntarget = \"4MiB\"\ncleaner = { age = \"1s\" }\nlike = \"msr:web_0\"\nrequests = 1000\n\
        [[disk]]\nname = \"b\"\nlike = \"msr:hm_0\"\nrequests = 1000\n";

    /// What becomes of an option.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Effect {
        /// It changes what is simulated.
        Works,
        /// It changes what is printed or written, or how fast.
        Shown,
        /// It is refused.
        Refused,
    }
    use Effect::{Refused, Shown, Works};

    /// Every option of `sim`, with an example, and its effect on a mix, and on a mix with a migration.
    const OPTIONS: &[(&str, &str, Effect, Effect)] = &[
        ("policy", "--policy lru", Works, Refused),
        ("block-size", "--block-size 8192", Works, Refused),
        ("pool", "--pool main", Works, Refused),
        ("replacement", "--replacement lru", Works, Refused),
        ("speed", "--speed", Shown, Refused),
        ("csv", "--csv FILE", Shown, Refused),
        ("parquet", "--parquet FILE", Shown, Refused),
        ("html", "--html FILE", Shown, Shown),
        ("decisions", "--decisions FILE", Shown, Refused),
        ("trace", "--trace FILE", Refused, Refused),
        ("format", "--format csv", Refused, Refused),
        ("key-bytes", "--key-bytes 4096", Refused, Refused),
        ("time-unit", "--time-unit 1s", Refused, Refused),
        ("strict", "--strict", Refused, Refused),
        ("align", "--align", Refused, Refused),
        ("blocks", "--blocks 5000", Works, Works),
        ("size", "--size 9MiB", Works, Works),
        ("fractions", "--fractions 0.7", Works, Works),
        ("mode", "--mode wt", Works, Works),
        ("speed-up", "--speed-up 3", Works, Works),
        ("interval", "--interval 1ms", Works, Refused),
        ("warm-up", "--warm-up 0.2", Works, Refused),
        ("samples", "--samples 9", Works, Refused),
        ("seed", "--seed 7", Works, Works),
        ("threads", "--threads 2", Shown, Refused),
        ("devices", "--devices 2", Works, Works),
        ("redundancy", "--redundancy", Works, Works),
        // A migration refuses it where it is simulated.
        ("mirrored", "--mirrored", Works, Works),
        ("staging", "--staging 1MiB", Works, Works),
        ("no-spare", "--no-spare", Works, Works),
        ("target", "--target b=5MiB", Refused, Works),
        ("target", "--target b=5MiB --allocator static", Works, Refused),
        ("target", "--target c=5MiB --allocator static", Refused, Refused),
        ("persistence", "--persistence all", Works, Works),
        ("admission", "--admission learned", Works, Works),
        ("admission", "--admission hec", Works, Refused),
        ("allocator", "--allocator urd", Works, Refused),
        ("set", "--set window=7s", Works, Refused),
        ("window", "--window 9s", Works, Refused),
        ("endurance", "--endurance 1DWPD", Works, Refused),
        ("burst", "--burst 1h --endurance 1DWPD", Works, Refused),
        ("sequential-cutoff", "--sequential-cutoff 2MiB", Works, Works),
        ("phase", "--phase 3", Works, Works),
        ("low-watermark", "--low-watermark 0.1", Works, Works),
        ("high-watermark", "--high-watermark 0.3", Works, Works),
        ("dirty-limit", "--dirty-limit 0.6", Works, Works),
        ("clean-age", "--clean-age 9s", Works, Works),
        ("clean-idle", "--clean-idle 9s", Works, Works),
        ("clean-rate", "--clean-rate 9MiB", Works, Works),
        ("clean-order", "--clean-order flush", Works, Works),
        ("restart-every", "--restart-every 9s", Works, Refused),
        ("restart", "--restart kill --restart-every 9s", Works, Refused),
        ("latency", "--latency", Works, Shown),
        ("device-read", "--device-read 7", Works, Works),
        ("device-write", "--device-write 7", Works, Works),
        ("device-flush", "--device-flush 7", Works, Works),
        ("device-servers", "--device-servers 7", Works, Works),
        ("device-speed", "--device-speed 1GiB", Works, Works),
        ("origin-read", "--origin-read 7", Works, Works),
        ("origin-write", "--origin-write 7", Works, Works),
        ("origin-flush", "--origin-flush 7", Works, Works),
        ("origin-servers", "--origin-servers 7", Works, Works),
        ("origin-speed", "--origin-speed 1GiB", Works, Works),
        ("round-trip", "--round-trip 7ms", Works, Works),
        ("network-speed", "--network-speed 1MiB", Works, Works),
        ("migrate-disk", "--migrate-disk b", Refused, Works),
        ("method", "--method preload", Refused, Works),
        ("link", "--link 1Gbit", Refused, Works),
    ];

    /// Describes the settings of the simulation, or returns why nothing is simulated.
    fn simulated(path: &Path, moves: bool, words: &str) -> std::result::Result<String, String> {
        let mix = path.to_str().unwrap();
        let fixed = ["haversack", "sim", "--mix", mix].into_iter();
        let moving = ["--migrate-at", "80s"].into_iter().filter(|_| moves);
        let parsed = Arguments::try_parse_from(fixed.chain(moving).chain(words.split_whitespace()));
        let Command::Sim(sim) = parsed.map_err(|error| error.to_string())?.command else {
            panic!("it is sim")
        };
        let of = |sim: &Sim| {
            if moves { crate::compare_migration::told(sim, path) } else { crate::sim::told(sim, path) }
        };
        of(&sim).map_err(|error| error.to_string())
    }

    #[test]
    fn every_option_of_sim_works_with_a_mix_or_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mix.toml");
        std::fs::write(&path, MIX).unwrap();
        let mut wrong = Vec::new();
        for moves in [false, true] {
            let plain = simulated(&path, moves, "").unwrap();
            for (option, words, of_mix, of_move) in OPTIONS {
                let expected = if moves { of_move } else { of_mix };
                let found = simulated(&path, moves, words);
                let effect = match &found {
                    Ok(text) if *text == plain => Shown,
                    Ok(_) => Works,
                    Err(_) => Refused,
                };
                let says = |why: &String| {
                    [&format!("--{option}"), "--migrate-at", "--mix"].iter().any(|word| why.contains(*word))
                };
                if effect != *expected || found.as_ref().is_err_and(|why| !says(why)) {
                    wrong.push(format!("{words}, moves {moves}: {effect:?}, {:?}", found.err()));
                }
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }

    #[test]
    fn the_table_has_every_option_of_sim() {
        let mut arguments = Arguments::command();
        arguments.build();
        let sim = arguments.find_subcommand("sim").unwrap();
        let own = ["mix", "migrate-at", "help"];
        let known = |name: &&str| OPTIONS.iter().any(|(option, ..)| option == name) || own.contains(name);
        let all = sim.get_arguments().filter(|argument| !argument.is_global_set());
        let missing: Vec<&str> =
            all.filter_map(|argument| argument.get_long()).filter(|name| !known(name)).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }
}
