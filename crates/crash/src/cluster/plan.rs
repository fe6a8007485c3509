//! The parameters of a run of a cluster, derived from its seed.

use haversack_cluster::{Rule, Settings};
use haversack_model::Micros;
use haversack_model::random::Random;

/// The hosts.
pub const HOSTS: usize = 5;
/// The disks. The first two are of one VM.
pub const DISKS: usize = 4;
/// Which disks the VMs have.
pub const VMS: [&[usize]; 3] = [&[0, 1], &[2], &[3]];

/// Times of the daemons and of etcd, far shorter than real ones, in similar proportions.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Between two reports, and between two rounds of the host that balances.
    pub report_us: Micros,
    /// How long a host counts as alive.
    pub lease_us: Micros,
    /// Between two windows of the balancer.
    pub window_us: Micros,
    /// Between two looks at the directory.
    pub look_us: Micros,
    /// How long a call may take.
    pub call_us: Micros,
    /// After how much silence a connection counts as lost.
    pub silence_us: Micros,
    /// Before another attempt to connect.
    pub retry_us: Micros,
    /// Maximum time of a message to etcd, or of its answer.
    pub delay_us: Micros,
    /// Exchanges with etcd whose question is lost, and as many whose answer is, per thousand.
    pub lost_permille: u64,
    /// After what time without a driver an intent is abandoned.
    pub abandoned_us: Micros,
    /// What a program that moves a VM is said to need at most. One whose daemon has died may need more.
    pub program_us: Micros,
    /// For how long a VM whose move has failed is left alone.
    pub failure_us: Micros,
}

/// How often what happens, per 100,000 milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Unrest {
    /// A host dies.
    pub crash: u64,
    /// The host that balances dies while it is about to move a VM, or moves one.
    pub leader: u64,
    /// Two hosts are cut off from each other.
    pub cut: u64,
    /// A host is cut off from etcd.
    pub cut_etcd: u64,
    /// Etcd has no quorum for a time, loses its history, or its data.
    pub etcd: [u64; 3],
    /// A lease ends although its host is alive.
    pub lease: u64,
    /// A watch gets late, or catches up.
    pub lag: u64,
    /// An operator moves a VM.
    pub operator: u64,
    /// An operator drains a host, or ends that.
    pub drain: u64,
    /// Demands change.
    pub demand: u64,
}

/// Everything about the cluster that is decided before a run starts.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    pub times: Times,
    pub unrest: Unrest,
    pub settings: Settings,
    /// How often the program that moves VMs fails, in percent.
    pub failing_percent: u64,
    /// A guest may issue a request once in this many events.
    pub events_for_a_request: u64,
    /// Blocks of each host's cache, as it reports them.
    pub capacity_blocks: u64,
}

impl ClusterPlan {
    /// Returns a random plan.
    pub fn random(rng: &mut Random) -> ClusterPlan {
        let report_us = rng.pick(&[8_000, 20_000]);
        let lease_us = report_us * rng.pick(&[2, 4]);
        let times = Times {
            report_us,
            lease_us,
            window_us: report_us * rng.pick(&[1, 3]),
            look_us: 3_000,
            call_us: lease_us / 4,
            silence_us: lease_us / 3,
            retry_us: rng.pick(&[1_000, 10_000]),
            delay_us: rng.pick(&[100, 1_000, 4_000]).min(lease_us / 10),
            lost_permille: rng.pick(&[0, 2, 20]),
            abandoned_us: lease_us * 3,
            program_us: lease_us * 3,
            failure_us: report_us * rng.pick(&[2, 10]),
        };
        let crash = rng.pick(&[800, 2_500, 6_000]);
        let mut often = |most: u64| rng.pick(&[0, most / 8, most / 2, most]);
        let unrest = Unrest {
            crash,
            leader: often(3_000),
            cut: often(1_500),
            cut_etcd: often(1_500),
            etcd: [often(600), often(1_500), often(400)],
            lease: often(800),
            lag: often(2_000),
            operator: often(1_500),
            drain: often(600),
            demand: 1_000 + often(4_000),
        };
        let rule = rng.pick(&[Rule::LeastVariance, Rule::LeastLatency]);
        let residence_us = rng.pick(&[100_000, 400_000]);
        let settings = Settings {
            rule,
            windows: rng.range(1, 3) as u32,
            calm_windows: rng.range(1, 4) as u32,
            hysteresis: 1.0,
            max_moves_per_hour: rng.pick(&[20, u32::MAX]),
            max_moves_per_host: rng.range(1, 3) as u32,
            min_residence_us: residence_us,
            no_return_us: residence_us * rng.range(1, 4),
            stall_us: 50,
            ..Settings::default()
        };
        ClusterPlan {
            times,
            unrest,
            settings,
            failing_percent: rng.pick(&[0, 10, 40]),
            events_for_a_request: rng.pick(&[1, 2, 2, 2, 3, 3, 3, 3]),
            capacity_blocks: 1_000,
        }
    }
}
