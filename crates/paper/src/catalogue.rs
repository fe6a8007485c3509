//! The papers whose figures are reproduced, and the mixes that their recipes name.

use haversack_sim::mix::Mix;

use crate::error::PaperError;
use crate::recipe::{Figure, Paper};

const PAPERS: [(&str, &str); 5] = [
    ("cloudcache", include_str!("../../../papers/cloudcache.toml")),
    ("vcacheshare", include_str!("../../../papers/vcacheshare.toml")),
    ("eci-cache", include_str!("../../../papers/eci-cache.toml")),
    ("firepanif", include_str!("../../../papers/firepanif.toml")),
    ("liu", include_str!("../../../papers/liu.toml")),
];

const MIXES: [(&str, &str); 7] = [
    ("scan-beside-local", include_str!("../../../mixes/scan-beside-local.toml")),
    ("backup-beside-database", include_str!("../../../mixes/backup-beside-database.toml")),
    ("eci-sixteen", include_str!("../../../mixes/eci-sixteen.toml")),
    ("liu-four", include_str!("../../../mixes/liu-four.toml")),
    ("firepanif", include_str!("../../../mixes/firepanif.toml")),
    ("cloudcache-web", include_str!("../../../mixes/cloudcache-web.toml")),
    ("cloudcache-moodle", include_str!("../../../mixes/cloudcache-moodle.toml")),
];

/// All papers.
///
/// # Errors
/// A recipe cannot be read.
pub fn papers() -> Result<Vec<Paper>, PaperError> {
    let read = |(name, text): &(&str, &str)| {
        toml::from_str::<Paper>(text)
            .map_err(|error| PaperError::Recipe { figure: (*name).into(), why: error.to_string() })
    };
    PAPERS.iter().map(read).collect()
}

/// The papers and figures of these names, each paper with the figures that are wanted: `PAPER`, `PAPER/FIGURE` or
/// `all`.
///
/// # Errors
/// There is no such paper or figure.
pub fn find(names: &[String]) -> Result<Vec<Paper>, PaperError> {
    let all = papers()?;
    let full = |paper: &Paper, figure: &Figure| format!("{}/{}", paper.name, figure.name);
    for name in names {
        let is_known = name == "all"
            || all.iter().any(|paper| {
                paper.name == *name || paper.figures.iter().any(|figure| full(paper, figure) == *name)
            });
        if !is_known {
            let known: Vec<&str> = all.iter().map(|paper| paper.name.as_str()).collect();
            return Err(PaperError::Unknown { name: name.clone(), known: known.join(", ") });
        }
    }
    let mut found = Vec::new();
    for mut paper in all {
        let short = paper.name.clone();
        let is_wanted =
            |figure: &str| names.iter().any(|name| *name == "all" || *name == short || *name == figure);
        let wanted: Vec<bool> = paper.figures.iter().map(|figure| is_wanted(&full(&paper, figure))).collect();
        let mut wanted = wanted.into_iter();
        paper.figures.retain(|_| wanted.next().unwrap_or(false));
        if !paper.figures.is_empty() {
            found.push(paper);
        }
    }
    Ok(found)
}

/// The mix of a name: the paper's, or one of the repository's.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn mix(paper: &Paper, name: &str) -> Result<Mix, PaperError> {
    let refused = |why: String| PaperError::Recipe { figure: paper.name.clone(), why };
    if let Some(mix) = paper.mixes.get(name) {
        return Ok(mix.clone());
    }
    let text = MIXES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    let text = text.ok_or_else(|| refused(format!("there is no mix '{name}'")))?;
    toml::from_str(text).map_err(|error| refused(error.to_string()))
}
