//! Which hosts borrow flash of others, from when on and until when.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{host, set_demand, vm};
use haversack_cluster::{
    Balancer, Borrows, FlashLoan, HostName, HostState, Lends, Offers, Settings, Snapshot,
};

const CAPACITY: u64 = 1 << 20;

/// Host `a` demands 130 % of its cache, and its VM cannot move; `b` and `c` demand 20 and 40 %.
fn snapshot() -> Snapshot {
    let mut vms = vec![
        vm("a1", "a", CAPACITY * 13 / 10),
        vm("b1", "b", CAPACITY * 2 / 10),
        vm("c1", "c", CAPACITY * 4 / 10),
    ];
    vms[0].pinned = Some("it has a device of its host".into());
    Snapshot { hosts: ["a", "b", "c"].map(|name| host(name, CAPACITY)).into(), vms }
}

fn offers() -> Offers {
    let lends = Lends { spare_blocks: CAPACITY / 2, to: None };
    let reaches = BTreeSet::from(["b".into(), "c".into()]);
    Offers {
        lenders: ["a", "b", "c"].map(|name| (name.into(), lends.clone())).into(),
        borrowers: BTreeMap::from([("a".into(), Borrows { reaches, ..Borrows::default() })]),
        moves_are_made: true,
    }
}

/// A cluster whose hosts do what the plan says.
struct Scene {
    balancer: Balancer,
    snapshot: Snapshot,
    offers: Offers,
}

impl Scene {
    fn new() -> Scene {
        let balancer = Balancer::new(Settings::default()).unwrap();
        Scene { balancer, snapshot: snapshot(), offers: offers() }
    }

    /// Returns the loans that are planned now.
    fn planned(&self) -> Vec<FlashLoan> {
        let plan = self.balancer.plan(0, &self.snapshot).unwrap();
        let loans = self.balancer.loans(&self.snapshot, &plan, &self.offers).unwrap();
        for FlashLoan { borrower, .. } in &loans {
            let borrows = !self.offers.borrowers[borrower].from.is_empty();
            assert!(self.balancer.may_borrow(borrower, borrows), "a host may leave the plan out");
        }
        loans
    }

    /// A window passes, and the hosts do what is planned. Returns the lenders of `a`.
    fn window(&mut self) -> Vec<String> {
        self.balancer.observe(&self.snapshot).unwrap();
        let loans = self.planned();
        let of_a = loans.iter().filter(|loan| loan.borrower.0 == "a");
        let from: BTreeMap<HostName, u64> = of_a.map(|loan| (loan.lender.clone(), loan.blocks)).collect();
        let lenders = from.keys().map(|name| name.0.clone()).collect();
        self.offers.borrowers.get_mut(&HostName::from("a")).unwrap().from = from;
        lenders
    }

    fn demand(&mut self, vm: usize, percent: u64) {
        set_demand(&mut self.snapshot.vms[vm], CAPACITY * percent / 100, 1000.0);
    }
}

#[test]
fn an_overloaded_host_whose_vm_cannot_move_borrows_and_gives_back() {
    let mut scene = Scene::new();
    let nobody: [&str; 0] = [];
    assert_eq!(scene.window(), nobody);
    assert_eq!(scene.window(), nobody);
    assert!(!scene.balancer.may_borrow(&"a".into(), false));
    assert_eq!(scene.window(), ["b"], "the one with the most to spare");
    assert!(["b", "c"].map(|name| scene.balancer.may_borrow(&name.into(), false)) == [false, false]);
    let [loan] = &scene.planned()[..] else { panic!("one loan") };
    assert!(loan.is_begun && loan.to_string().starts_with("a borrows flash of b"), "{loan}");
    // Demand is low for two windows, which does not end the loan, and then for long enough to end it.
    scene.demand(0, 50);
    assert_eq!((scene.window(), scene.window()), (vec!["b".into()], vec!["b".into()]));
    scene.demand(0, 130);
    assert_eq!(scene.window(), ["b"]);
    scene.demand(0, 50);
    assert_eq!((scene.window(), scene.window()), (vec!["b".into()], vec!["b".into()]));
    assert_eq!(scene.window(), nobody);
    assert!(scene.planned().is_empty());
    // A new loan begins under the same conditions as the first one.
    scene.demand(0, 130);
    assert_eq!(scene.window(), nobody);
    assert_eq!(scene.window(), nobody);
    assert_eq!(scene.window(), ["b"]);
}

#[test]
fn a_host_whose_vms_are_moved_away_does_not_borrow() {
    let mut scene = Scene::new();
    scene.snapshot.vms[0].pinned = None;
    scene.snapshot.vms.push(vm("a2", "a", CAPACITY * 2 / 10));
    scene.demand(0, 100);
    for _ in 0..4 {
        assert!(scene.window().is_empty());
    }
    assert!(!scene.balancer.plan(0, &scene.snapshot).unwrap().moves.is_empty());
    // No host carries out the moves.
    scene.offers.moves_are_made = false;
    assert_eq!(scene.window(), ["b"]);
}

#[test]
fn only_a_host_that_may_lend_and_can_is_asked() {
    let asked = |change: fn(&mut Scene)| {
        let mut scene = Scene::new();
        change(&mut scene);
        (0..3).for_each(|_| drop(scene.window()));
        scene.window()
    };
    assert_eq!(asked(|_| {}), ["b"]);
    assert_eq!(asked(|scene| drop(scene.offers.lenders.remove(&HostName::from("b")))), ["c"]);
    assert_eq!(asked(|scene| scene.snapshot.hosts[1].state = HostState::Draining), ["c"]);
    assert_eq!(asked(|scene| scene.snapshot.hosts[1].state = HostState::Away), ["c"]);
    assert_eq!(asked(|scene| scene.demand(1, 89)), ["c"]);
    let unreached = |scene: &mut Scene| {
        let a = scene.offers.borrowers.get_mut(&HostName::from("a")).unwrap();
        a.reaches.remove(&HostName::from("b"));
    };
    assert_eq!(asked(unreached), ["c"]);
    let to_others = |scene: &mut Scene| {
        let b = scene.offers.lenders.get_mut(&HostName::from("b")).unwrap();
        b.to = Some(BTreeSet::from(["c".into()]));
    };
    assert_eq!(asked(to_others), ["c"]);
    let full = |scene: &mut Scene| {
        scene.offers.lenders.get_mut(&HostName::from("b")).unwrap().spare_blocks = 100;
    };
    assert_eq!(asked(full), ["c"]);
    let small = |scene: &mut Scene| {
        scene.offers.lenders.get_mut(&HostName::from("b")).unwrap().spare_blocks = CAPACITY / 5;
        scene.offers.lenders.get_mut(&HostName::from("c")).unwrap().spare_blocks = CAPACITY / 5;
    };
    assert_eq!(asked(small), ["b", "c"], "40 % are lacking");
    let mut scene = Scene::new();
    scene.offers.borrowers.clear();
    (0..4).for_each(|_| scene.balancer.observe(&scene.snapshot).unwrap());
    assert!(scene.planned().is_empty(), "it does not borrow where the plan says");
}

#[test]
fn a_lender_keeps_its_borrower_until_it_is_overloaded_itself() {
    let mut scene = Scene::new();
    (0..3).for_each(|_| drop(scene.window()));
    // `b` has lent all its spare flash, and `c` now has more to lend than `b`.
    scene.offers.lenders.get_mut(&HostName::from("b")).unwrap().spare_blocks = 0;
    scene.demand(2, 0);
    for _ in 0..5 {
        assert_eq!(scene.window(), ["b"]);
    }
    scene.demand(1, 95);
    assert_eq!((scene.window(), scene.window()), (vec!["b".into()], vec!["b".into()]));
    assert_eq!(scene.window(), ["c"]);
}

#[test]
fn two_borrowers_do_not_count_on_the_same_flash() {
    let mut scene = Scene::new();
    scene.snapshot.hosts.push(host("d", CAPACITY));
    let mut other = vm("d1", "d", CAPACITY * 14 / 10);
    other.pinned = Some("it has a device of its host".into());
    scene.snapshot.vms.push(other);
    let reaches = BTreeSet::from(["b".into(), "c".into()]);
    scene.offers.borrowers.insert("d".into(), Borrows { reaches, ..Borrows::default() });
    (0..3).for_each(|_| scene.balancer.observe(&scene.snapshot).unwrap());
    let loans = scene.planned();
    assert_eq!(loans[0].borrower.0, "d", "the most loaded one is first");
    let mut lent: BTreeMap<&str, u64> = BTreeMap::new();
    for loan in &loans {
        *lent.entry(&loan.lender.0).or_default() += loan.blocks;
        assert!(!loan.is_begun && loan.to_string().contains("is to borrow"), "{loan}");
    }
    assert!(lent.len() == 2 && lent.values().all(|blocks| *blocks <= CAPACITY / 2), "{loans:?}");
    assert!(loans.iter().any(|loan| loan.borrower.0 == "a"));
}
