//! A cluster at work: five hosts on a network of their own with 1 Gbit/s each, three members of etcd on three of them,
//! guests whose disks have slow origins that all hosts reach, and a program that moves the guests. The balancer evens
//! the load out; then hosts are drained, while daemons, members of etcd, programs and QEMUs are killed.
//!
//! `HAVERSACK_SEED` is where the random numbers begin. Each kind of fault comes once before any comes again, in the
//! order that is drawn; `HAVERSACK_DRAINS` is how many hosts are drained.

mod scene;

use std::time::{Duration, Instant};

use haversack_e2e::error::check;
use haversack_e2e::tools::{PATIENCE, number_from};
use haversack_e2e::{Error, Result, test_alone};
use haversack_model::random::Random;

use self::scene::{FIRST, Scene};

/// How long the test waits for a move before it kills the leader: a leader does not move a VM again soon after a failed
/// move, but the next leader does.
const LONGEST_REST: Duration = Duration::from_secs(12);
/// How many hosts are drained, if `HAVERSACK_DRAINS` does not say.
const DRAINS: u64 = 3;
/// How long after the beginning of a move something is killed, at most, in milliseconds.
const LATEST_MS: u64 = 3000;

/// What is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The daemon of the host that is drained.
    Source,
    /// The daemon of the host that the VM goes to.
    Destination,
    /// Any daemon.
    Any,
    /// The daemon of the host that balances.
    Leader,
    /// A member of etcd.
    Member,
    /// Two members of etcd: the third one has no majority.
    Quorum,
    /// The program that moves the VM.
    Program,
    /// The QEMU that waits for the VM.
    DestinationQemu,
    /// The QEMU that the VM runs in.
    SourceQemu,
}

const FAULTS: [Fault; 9] = [
    Fault::Source,
    Fault::Destination,
    Fault::Any,
    Fault::Leader,
    Fault::Member,
    Fault::Quorum,
    Fault::Program,
    Fault::DestinationQemu,
    Fault::SourceQemu,
];

#[test]
fn guests_are_balanced_and_drained_whatever_is_killed() {
    test_alone("a cluster at work", |place| {
        let seed = number_from("HAVERSACK_SEED", 1)?;
        place.say(&format!("HAVERSACK_SEED={seed}"));
        let mut random = Random::new(seed);
        let places = Scene::places(place)?;
        let mut scene = Scene::start(place, &places)?;

        place.say("one host has all guests");
        let before = scene.wait_for_overload()?;
        let after = scene.wait_for_balance(&before)?;
        place.say(&format!("loads {before:.2?} became {after:.2?}"));
        // When the first host has too much demand, more of it is still to be measured.
        let mut together = vec![0.0; after.len()];
        together[FIRST] = after.iter().sum();
        check(variance(&after) < variance(&together) / 2.0, "the load is not even")?;

        scene.change_load()?;
        let drains = number_from("HAVERSACK_DRAINS", DRAINS)?;
        let mut faults = Vec::new();
        for number in 1..=drains {
            if faults.is_empty() {
                faults.extend(FAULTS);
            }
            let fault = faults.swap_remove(random.below(faults.len() as u64) as usize);
            place.say(&format!("drain {number}: {fault:?}"));
            drain(&mut scene, fault, &mut random)?;
        }
        scene.check()
    });
}

/// Drains a host that has a VM, and has something fail while it moves.
fn drain(scene: &mut Scene<'_>, fault: Fault, random: &mut Random) -> Result<()> {
    let alive: Vec<usize> = (0..scene.manager.vms().len()).filter(|vm| scene.is_alive(*vm)).collect();
    // The last VM is not killed.
    let fault = if fault == Fault::SourceQemu && alive.len() == 1 { Fault::DestinationQemu } else { fault };
    let from = scene.manager.vms()[random.pick(&alive)].site();
    scene.drain(from, true)?;
    let mut is_pending = true;
    let (mut quiet, start) = (Instant::now(), Instant::now());
    while scene.has_guests(from) {
        scene.manager.attend()?;
        if let Some(vm) = scene.moving() {
            quiet = Instant::now();
            if std::mem::take(&mut is_pending) {
                std::thread::sleep(Duration::from_millis(random.below(LATEST_MS)));
                let lasts = Duration::from_millis(random.range(10, 1000));
                fail(scene, fault, vm, from, lasts, random)?;
            }
        } else if quiet.elapsed() > LONGEST_REST {
            scene.kill_leader(Duration::ZERO)?;
            quiet = Instant::now();
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Check(format!("{} is not drained", scene.manager.site(from))));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    scene.manager.settle()?;
    scene.detach_dead()?;
    scene.drain(from, false)
}

/// Kills something, and starts it again if it is a server.
fn fail(
    scene: &mut Scene<'_>,
    fault: Fault,
    vm: usize,
    from: usize,
    lasts: Duration,
    random: &mut Random,
) -> Result<()> {
    let to = scene.manager.vms()[vm].moves_to().unwrap_or(from);
    let any = random.below(scene.daemons.len() as u64) as usize;
    let member = random.below(scene.etcd.len() as u64) as usize;
    match fault {
        Fault::Source => scene.daemons[from].kill_and_restart(lasts),
        Fault::Destination => scene.daemons[to].kill_and_restart(lasts),
        Fault::Any => scene.daemons[any].kill_and_restart(lasts),
        Fault::Leader => scene.kill_leader(lasts),
        Fault::Member => {
            scene.etcd[member].kill()?;
            std::thread::sleep(lasts);
            scene.etcd[member].start_again()
        }
        Fault::Quorum => {
            let another = (member + 1) % scene.etcd.len();
            scene.etcd[member].kill()?;
            scene.etcd[another].kill()?;
            std::thread::sleep(lasts);
            scene.etcd[another].start_again()?;
            scene.etcd[member].start_again()
        }
        Fault::Program => {
            scene.manager.vms()[vm].kill_program();
            Ok(())
        }
        Fault::DestinationQemu => scene.manager.vms_mut()[vm].kill_destination().map(drop),
        Fault::SourceQemu => {
            scene.manager.vms_mut()[vm].kill();
            Ok(())
        }
    }
}

fn variance(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64
}
