//! The errors of a paper's recipes.

use std::path::PathBuf;

use haversack_analyze::AnalyzeError;
use haversack_control::ControlError;
use haversack_policy::PolicyError;
use haversack_sim::SimError;

/// A figure cannot be made.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum PaperError {
    /// There is no such paper or figure.
    #[error("no paper or figure '{name}': expected {known}; 'haversack paper list' lists the figures")]
    Unknown {
        /// The given name.
        name: String,
        /// The papers.
        known: String,
    },
    /// A recipe is wrong.
    #[error("the recipe of {figure}: {why}")]
    Recipe {
        /// The figure, or the paper.
        figure: String,
        /// What is wrong with it.
        why: String,
    },
    /// Real traces are not where they should be.
    #[error(
        "no trace of {volumes} in {}: expected a file such as {example}.csv or {example}.csv.gz for each; leave --msr out for \
         generated loads",
        directory.display()
    )]
    NoTraces {
        /// The volumes.
        volumes: String,
        /// The first one.
        example: String,
        /// Where they were expected.
        directory: PathBuf,
    },
    /// A simulation fails.
    #[error("{figure}: {error}")]
    Simulation {
        /// The figure.
        figure: String,
        /// Why.
        error: SimError,
    },
    /// An analysis fails.
    #[error("{figure}: {error}")]
    Analysis {
        /// The figure.
        figure: String,
        /// Why.
        error: AnalyzeError,
    },
}

/// An error without its figure.
#[derive(thiserror::Error, Debug)]
pub(crate) enum Failure {
    #[error(transparent)]
    Simulation(#[from] SimError),
    #[error(transparent)]
    Analysis(#[from] AnalyzeError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("{0}")]
    Recipe(String),
    #[error(transparent)]
    NoTraces(#[from] NoTraces),
}

/// Volumes without a trace.
#[derive(thiserror::Error, Debug)]
#[error("no traces of {}", volumes.join(", "))]
pub struct NoTraces {
    /// The volumes.
    pub volumes: Vec<String>,
    /// Where they were expected.
    pub directory: PathBuf,
}

impl Failure {
    /// The error of a figure.
    pub fn of(self, figure: &str) -> PaperError {
        let figure = figure.to_string();
        match self {
            Failure::Simulation(error) => PaperError::Simulation { figure, error },
            Failure::Analysis(error) => PaperError::Analysis { figure, error },
            Failure::Control(error) => PaperError::Recipe { figure, why: error.to_string() },
            Failure::Policy(error) => PaperError::Recipe { figure, why: error.to_string() },
            Failure::Recipe(why) => PaperError::Recipe { figure, why },
            Failure::NoTraces(NoTraces { volumes, directory }) => PaperError::NoTraces {
                example: volumes.first().cloned().unwrap_or_default(),
                volumes: volumes.join(", "),
                directory,
            },
        }
    }
}
