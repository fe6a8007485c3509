//! Confinement of a process and its children to listed files and directories, by Landlock: the process itself gives up
//! what it does not need, and needs no privileges for that.
//!
//! Invariants
//! - A confinement only ever becomes narrower. It cannot be lifted, and what a child gets is never more than its parent
//!   has.
//! - What the kernel cannot restrict is named ([`Confined::unrestricted`]); a kernel that cannot restrict the opening
//!   of files is an error.
//! - A rule belongs to a file or directory, not to its name: what is put into its place later, or mounted on it, is
//!   outside. [`Rules::check`] tells the difference, so that nobody has to guess it from EACCES.

mod confine;
mod error;
mod rules;

pub use confine::{Confined, confine, confine_child, confine_thread};
pub use error::SandboxError;
pub use rules::{Access, Rules};
