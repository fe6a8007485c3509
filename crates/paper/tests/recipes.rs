//! Every recipe: it can be read, names systems and loads that exist, and a small run of each kind ends with a page.

use std::collections::BTreeSet;

use haversack_paper::page::page;
use haversack_paper::recipe::{Figure, Paper, Plot, Recipe};
use haversack_paper::{PaperError, catalogue, find, run};
use haversack_sim::mix::Mix;

fn figures() -> Vec<(Paper, Figure)> {
    let papers = catalogue::papers().unwrap();
    papers.iter().flat_map(|paper| paper.figures.iter().map(|f| (paper.clone(), f.clone()))).collect()
}

/// The systems of a figure's points.
fn systems(figure: &Figure, mix: Option<&Mix>) -> BTreeSet<String> {
    let disks = || mix.unwrap().disks.iter().map(|load| load.name().to_string());
    match &figure.recipe {
        Recipe::Pools(pools) => {
            let names = pools.systems.iter().flat_map(|system| {
                let phases = pools.phases.iter().map(|phase| format!("{}, {}", system.name, phase.name));
                phases.chain([system.name.clone()])
            });
            names.collect()
        }
        Recipe::Distances(_) => disks().chain(["all".into()]).collect(),
        Recipe::Windows(_) | Recipe::Intervals(_) => disks().collect(),
        Recipe::Rings(rings) => rings.rings.iter().map(ToString::to_string).collect(),
        Recipe::Moves(moves) => moves.methods.iter().map(|named| named.name.clone()).collect(),
        Recipe::Clients(_) => ["without flash", "cache-unaware", "cache-aware"].map(String::from).into(),
        Recipe::Weights(weights) => weights.tenants.keys().cloned().collect(),
    }
}

#[test]
fn every_recipe_names_what_exists() {
    let mut names = BTreeSet::new();
    for (paper, figure) in figures() {
        let name = format!("{}/{}", paper.name, figure.name);
        assert!(names.insert(name.clone()), "{name} twice");
        let mix = figure.mix.as_ref().map(|mix| catalogue::mix(&paper, mix).unwrap());
        if let Some(mix) = &mix {
            mix.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        if let Recipe::Pools(pools) = &figure.recipe {
            for system in &pools.systems {
                let config = mix.as_ref().unwrap().config(&system.policy);
                config.unwrap_or_else(|error| panic!("{name}, {}: {error}", system.name));
            }
        }
        let known = systems(&figure, mix.as_ref());
        for claim in &figure.claims {
            for system in std::iter::once(&claim.of).chain(&claim.against) {
                assert!(known.contains(system), "{name}: '{system}' is none of {known:?}");
            }
        }
        for plot in &figure.plot {
            if let Plot::Course { system, .. } = plot {
                assert!(known.contains(system), "{name}: a course of '{system}'");
            }
        }
    }
    assert!(names.len() > 30, "{names:?}");
}

/// The mix with so little load that a figure takes a moment.
fn small(mix: &Mix) -> Mix {
    let mut mix = mix.clone();
    for load in &mut mix.disks {
        load.requests = load.requests.map(|_| 2000);
        for generator in load.generator.iter_mut().chain(&mut load.then) {
            generator.requests = generator.requests.min(2000);
        }
    }
    mix
}

/// A figure of each kind, made from little, has its plots, its table and words for its claims.
#[test]
fn a_page_has_the_plots_of_every_kind() {
    let names = [
        "cloudcache/3.7",
        "eci-cache/C.1",
        "vcacheshare/2",
        "vcacheshare/3",
        "vcacheshare/6",
        "cloudcache/3.3",
        "vcacheshare/7",
        "liu/table-2",
        "liu/9a",
        "cloudcache/4.2b",
    ];
    for name in names {
        let mut papers = find(&[name.to_string()]).unwrap();
        let paper = &mut papers[0];
        let figure = paper.figures[0].clone();
        // A course has a decision or more, a prediction two windows, and a move has a beginning: those loads are small
        // as they are.
        let is_whole =
            ["eci-cache/C.1", "vcacheshare/6"].contains(&name) || matches!(figure.recipe, Recipe::Moves(_));
        if let (Some(mix), false) = (&figure.mix, is_whole) {
            let little = small(&catalogue::mix(paper, mix).unwrap());
            paper.mixes.insert(mix.clone(), little);
        }
        let result = run::run(paper, &figure, None, 1, &|_, _| {}).unwrap();
        assert!(!result.outcome.points.is_empty(), "{name}");
        for plot in &figure.plot {
            let outcome = &result.outcome;
            let has = match plot {
                Plot::Bars { measure } | Plot::Lines { measure, .. } => {
                    outcome.points.iter().any(|point| point.values.contains_key(measure))
                }
                Plot::Course { system, .. } => outcome.courses.iter().any(|course| course.system == *system),
                Plot::HitsOverTime => !outcome.courses.is_empty(),
            };
            assert!(has, "{name}: nothing for {plot:?}");
        }
        let html = page(paper, std::slice::from_ref(&result)).to_html();
        assert_eq!(html.matches("<svg").count(), figure.plot.len(), "{name}");
        for claim in &result.claims {
            assert!(claim.ours.is_some(), "{name}: {}", claim.words);
        }
        assert!(html.contains("the paper says"), "{name}");
    }
}

/// ECI-Cache's corner case C.2: the disk's own hits after the change, and what it has at the end of a part. The other
/// disk goes on hitting all the time.
#[test]
fn a_phase_has_the_hits_of_each_disk_and_the_shares_at_its_end() {
    let papers = find(&["eci-cache/C.2".to_string()]).unwrap();
    let result = run::run(&papers[0], &papers[0].figures[0], None, 1, &|_, _| {}).unwrap();
    let at = |phase: &str, measure: &str| {
        let value = result.outcome.value(&format!("ECI-Cache, {phase}"), None, &measure.parse().unwrap());
        value.unwrap_or_else(|| panic!("{phase}: no {measure}"))
    };
    assert!(at("first part", "read-hits:case") > 0.5);
    assert_eq!(at("last part, first 2 s", "read-hits:case"), 0.0);
    assert!(at("last part, first 2 s", "read-hits:other") > 0.5);
    assert!(at("last part, first 2 s", "hits") < at("last part, first 2 s", "read-hits:other"));
    // In the last part its first window has nothing, the second one has what the first one showed.
    let (mean, end) = (at("last part", "allocated:case"), at("last part", "allocated-at-end:case"));
    assert!(end > mean && mean > 0.0, "{mean} {end}");
    assert_eq!(at("second part", "allocated-at-end:case"), 0.0);
}

#[test]
fn names_select_figures() {
    let count = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
        find(&names).map(|papers| papers.iter().map(|paper| paper.figures.len()).sum::<usize>())
    };
    assert_eq!(count(&["liu/10"]).unwrap(), 1);
    assert_eq!(count(&["liu/10", "firepanif/table-1"]).unwrap(), 2);
    assert_eq!(count(&["all"]).unwrap(), figures().len());
    let error = count(&["liu/11"]).unwrap_err();
    assert!(matches!(error, PaperError::Unknown { .. }), "{error}");
    assert!(error.to_string().contains("cloudcache, vcacheshare"), "{error}");
}

#[test]
fn missing_traces_are_told_before_the_first_simulation() {
    let folder = tempfile::tempdir().unwrap();
    let papers = find(&["eci-cache".to_string()]).unwrap();
    let error = run::check(&papers, Some(folder.path())).unwrap_err();
    assert!(error.to_string().contains("wdev_0, web_1"), "{error}");
    // Loads without volumes like real ones need no traces.
    let papers = find(&["liu".to_string(), "firepanif".to_string()]).unwrap();
    run::check(&papers, Some(folder.path())).unwrap();
}

/// Writes a volume in the MSR format: one read every 10 s, cycling over `blocks` blocks.
fn msr(folder: &std::path::Path, volume: &str, blocks: u64) {
    let line = |n: u64| {
        let ticks = 128_166_372_000_000_000 + n * 100_000_000;
        format!("{ticks},host,0,Read,{},4096,100\n", n % blocks * 4096)
    };
    std::fs::write(folder.join(format!("{volume}.csv")), (0..2000).map(line).collect::<String>()).unwrap();
}

#[test]
fn real_traces_are_played_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    msr(folder.path(), "src1_0", 2000);
    msr(folder.path(), "prxy_1", 30);
    let papers = find(&["vcacheshare/5".to_string()]).unwrap();
    let result = run::run(&papers[0], &papers[0].figures[0], Some(folder.path()), 1, &|_, _| {}).unwrap();
    assert!(result.is_real);
    // Two volumes with 2,000 requests each, 10 s apart.
    let played = result.outcome.played.unwrap();
    assert_eq!((played.requests, played.footprint_bytes), (4000, 2030 * 4096));
    assert!(result.assumptions[0].contains("Real traces: src, prxy"), "{:?}", result.assumptions);
    let judged = result.claims.iter().filter(|claim| !claim.words.contains("not judged")).count();
    assert_eq!(judged, result.claims.len());
}

/// A system's settings reach its disks, which have settings of their own in a mix.
#[test]
fn clean_blocks_that_do_not_survive_cost_hits() {
    let papers = find(&["cloudcache/2.25b".to_string()]).unwrap();
    let result = run::run(&papers[0], &papers[0].figures[0], None, 1, &|_, _| {}).unwrap();
    let hits = |system: &str| result.outcome.value(system, None, &"hits".parse().unwrap()).unwrap();
    assert!(hits("all-persistent") > hits("write-back-persistent") + 0.05, "{:?}", result.claims);
}
