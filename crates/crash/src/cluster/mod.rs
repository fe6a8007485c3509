//! Five hosts, their virtual machines and an etcd: VMs are moved by the balancer and by hand while hosts die, the
//! network and etcd fail, and etcd loses its data.
//!
//! The decisions are those of the daemon: [`haversack_cluster`] plans, [`haversack_moves`] begins, ends and clears
//! away, and [`haversack_directory`] says what is written and under which conditions. Simulated are what they run on:
//! etcd (`etcd`), a host's connection to it (`access`), the threads of the daemon (`daemon`) and the manager of the VMs
//! (`manager`). A judge (`judge`) knows what must never happen.
//!
//! In half of the runs, hosts are off for long or for ever. An operator (`operator`) then lets other hosts take their
//! disks over (`own`), and either has the losses recorded or accepts them (`losses`). Hosts ask each other about that
//! (`epochs`), and draw the same conclusions as the daemon.
//!
//! In some runs, hosts hold replicas of other hosts' dirty blocks (`replicas`), which are used when the owners are
//! gone.
//!
//! Everything in a run is determined by one seed.

mod access;
mod daemon;
mod epochs;
mod etcd;
mod faults;
mod judge;
mod losses;
mod manager;
mod operator;
mod own;
mod plan;
mod replicas;
mod run;

pub use run::{Options, most_points_of_a_run, run, run_seed, run_seed_with_replicas};
