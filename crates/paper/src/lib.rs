//! Figures and tables of the papers that Haversack's policies come from, reproduced from recipes.
//!
//! A recipe is data: a load, systems with their settings, what is plotted, and what the paper claims with its own
//! numbers. The files are in the folder `papers`, one for each paper; the kinds of recipes are in [`recipe`]. [`find`]
//! selects figures, [`run`](run::run) makes one, and [`page`](page::page) shows all of a paper.

pub mod catalogue;
pub mod claim;
pub mod error;
pub mod measure;
pub mod outcome;
pub mod page;
pub mod par_bf;
pub mod recipe;
mod recipes;
pub mod run;
pub mod seeds;
pub mod workload;

pub use catalogue::find;
pub use error::PaperError;
pub use run::FigureResult;
