//! Requests and replies, after negotiation.

pub mod client;
mod coverage;
pub mod extents;
pub mod reply;
pub mod request;
pub mod rules;

pub use client::{ClientSession, Cookie, Event, StartError};
pub use extents::{Extent, ExtentWriter};
pub use reply::{Replier, ReplyHead};
pub use request::{Command, REQUEST_BYTES, Request, RequestReader};
pub use rules::{Refusal, RequestRules, Verdict};
