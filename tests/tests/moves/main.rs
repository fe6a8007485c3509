//! Disks move between two hosts with a network in between, again and again, while everything that can fail does:
//! daemons are killed, the link is cut or slow, the destination's cache is full, the origins go away. Whatever happens,
//! no client sees an error or a wrong byte.
//!
//! `HAVERSACK_MOVES` is how often disks move (10 if it is not set; guests a tenth of it), `HAVERSACK_SEED` where the
//! random numbers begin.

mod plan;
mod scene;

use haversack_e2e::scenario::{self, Load};
use haversack_e2e::tools::number_from;
use haversack_e2e::traveller::Traveller;
use haversack_e2e::verify::Verifier;
use haversack_e2e::{Error, Guest, Place, Result, image, test};
use haversack_model::random::Random;

use plan::{FAULTS, Plan, STEPS, Step};
use scene::Scene;

/// The disks of clients, their size in MiB, and how many of their blocks are in use.
const DISKS: [(&str, u64, usize); 2] = [("vm1", 64, 12_000), ("vm2", 16, 1_000)];

/// How often disks move in the suite, and where its random numbers begin.
const MOVES: usize = 10;
const SEED: u64 = 50;

fn moves() -> Result<usize> {
    Ok(number_from("HAVERSACK_MOVES", MOVES as u64)? as usize)
}

fn random(place: &Place) -> Result<Random> {
    let seed = number_from("HAVERSACK_SEED", SEED)?;
    place.say(&format!("HAVERSACK_SEED={seed}"));
    Ok(Random::new(seed))
}

/// Ends the client that has failed, if one has.
fn check_all(vms: &mut Vec<Traveller>) -> Result<()> {
    match vms.iter().position(Traveller::has_failed) {
        Some(failed) => vms.swap_remove(failed).end().map(drop),
        None => Ok(()),
    }
}

fn move_clients(scene: &mut Scene<'_>, vms: &[Traveller], plan: &Plan) -> Result<()> {
    vms.iter().try_for_each(|vm| vm.advance(200))?;
    scene.send_ahead(plan)?;
    scene.fail_at(Step::Ready, plan)?;
    vms.iter().try_for_each(Traveller::stop)?;
    scene.fail_at(Step::Stopped, plan)?;
    if plan.turns_back {
        vms.iter().for_each(|vm| vm.go_on(&scene.socket(plan.from)));
        vms.iter().try_for_each(|vm| vm.advance(20))?;
        vms.iter().try_for_each(Traveller::stop)?;
    }
    vms.iter().for_each(|vm| vm.go_on(&scene.socket(plan.to)));
    scene.fail_at(Step::Asked, plan)?;
    vms.iter().try_for_each(|vm| vm.advance(20))?;
    scene.fail_at(Step::Arriving, plan)?;
    vms.iter().try_for_each(|vm| vm.advance(200))?;
    scene.end_move(plan)
}

/// Otherwise the suite would not test every fault and step.
#[test]
fn the_seed_of_the_suite_draws_every_fault_and_every_step() {
    let mut random = Random::new(SEED);
    let plans: Vec<Plan> = (1..=MOVES).map(|number| Plan::draw(number, &mut random)).collect();
    for (number, plan) in (1..).zip(&plans) {
        println!("move {number}: {plan}");
    }
    let failing = || plans.iter().filter_map(|plan| Some((plan.fault?, plan.step)));
    assert!(FAULTS.iter().all(|fault| failing().any(|(drawn, _)| drawn == *fault)));
    assert!(STEPS.iter().all(|step| failing().any(|(_, drawn)| drawn == *step)));
    assert!(plans[0].fault.is_some(), "the only move of a guest");
}

#[test]
fn disks_move_again_and_again_whatever_fails() {
    test("moves of clients", |place| {
        let (mut random, moves) = (random(place)?, moves()?);
        let image =
            |(disk, mebibytes, _)| Ok((disk, image::zeroes(place, &format!("{disk}.img"), mebibytes)?));
        let disks: Vec<_> = DISKS.into_iter().map(image).collect::<Result<_>>()?;
        let places = [place.host("a")?, place.host("b")?];
        let mut scene = Scene::start(place, &places, &disks)?;
        let neighbours = scene.neighbours()?;
        let begin = |(disk, _, blocks)| {
            let verifier = Verifier::new(&scene.socket(0), disk, blocks, 1).never_detached();
            Traveller::begin(&scene.socket(0), disk, verifier)
        };
        let mut vms: Vec<Traveller> = DISKS.into_iter().map(begin).collect();
        for number in 1..=moves {
            let plan = Plan::draw(number, &mut random);
            place.say(&format!("move {number}: {plan}"));
            let moved = move_clients(&mut scene, &vms, &plan);
            check_all(&mut vms).and(moved)?;
        }
        let answered: u64 = vms.iter().map(Traveller::answered).sum();
        let here = &scene.daemons[moves % 2];
        for (number, (vm, (disk, ..))) in vms.into_iter().zip(DISKS).enumerate() {
            vm.stop()?;
            let mut verifier = vm.end()?;
            verifier.move_to(&scene.socket(moves % 2));
            verifier.verify_all()?;
            here.command(&["disk", "flush", disk])?;
            verifier.move_to(&scene.origin(number)?);
            verifier.verify_all()?;
        }
        neighbours.into_iter().try_for_each(|neighbour| neighbour.end().map(drop))?;
        place.say(&format!("{moves} moves, {answered} requests answered"));
        Ok(())
    });
}

/// Moves a guest, while what needs no new process may fail at any moment of QEMU's migration.
fn move_guest(scene: &mut Scene<'_>, load: &mut Load<'_>, number: usize, plan: &Plan) -> Result<()> {
    load.advance(100)?;
    scene.send_ahead(plan)?;
    scene.fail_at(Step::Ready, plan)?;
    let daemon = &scene.daemons[plan.to];
    let disks = [daemon.vhost_user("vm1"), daemon.nbd("vm2")];
    let outside = scene.outside();
    let during = matches!(plan.step, Step::Stopped | Step::Asked);
    let fault = plan.fault.filter(|fault| during && !fault.starts_servers());
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| {
            let Some(fault) = fault else { return Ok(()) };
            // QEMU takes seconds.
            std::thread::sleep(plan.after * 8);
            outside.fail(fault, plan)
        });
        load.guest().migrate(scene.place, &format!("guest{number}"), &disks)?;
        failing.join().map_err(|_| Error::Check("what was to fail has panicked".into()))?
    })?;
    if during && fault.is_none() {
        scene.fail_at(plan.step, plan)?;
    }
    scene.fail_at(Step::Arriving, plan)?;
    load.advance(100)?;
    scene.end_move(plan)
}

#[test]
fn guests_move_again_and_again_whatever_fails() {
    test("moves of guests", |place| {
        let mut random = random(place)?;
        let disks = [
            ("vm1", image::pattern(place, "vm1.img", "vm1", 64)?),
            ("vm2", image::zeroes(place, "vm2.img", 16)?),
        ];
        let places = [place.host("a")?, place.host("b")?];
        let mut scene = Scene::start(place, &places, &disks)?;
        let neighbours = scene.neighbours()?;
        let host = &scene.daemons[0];
        let mut guest = Guest::boot(place, "guest0", &[host.vhost_user("vm1"), host.nbd("vm2")])?;
        guest.ask("open vda vm1 pattern")?;
        guest.ask("open vdb vm2 zeroes")?;
        let mut load = Load::start(place, &mut guest, &["vda", "vdb"], 1)?;
        let moves = moves()?.div_ceil(10);
        for number in 1..=moves {
            let plan = Plan { turns_back: false, ..Plan::draw(number, &mut random) };
            place.say(&format!("move {number}: {plan}"));
            move_guest(&mut scene, &mut load, number, &plan)?;
        }
        load.stop()?;
        let digests =
            [scenario::verify(place, &mut guest, "vda")?, scenario::verify(place, &mut guest, "vdb")?];
        guest.off()?;
        neighbours.into_iter().try_for_each(|neighbour| neighbour.end().map(drop))?;
        for ((disk, file), digest) in disks.iter().zip(&digests) {
            scene.daemons[moves % 2].command(&["disk", "flush", disk])?;
            scenario::same_digest(file, digest)?;
        }
        Ok(())
    });
}
