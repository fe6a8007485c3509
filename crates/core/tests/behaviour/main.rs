//! What the core does, seen from outside: one program, so that it is linked once.

mod admission;
mod bad_input;
mod cleaning;
mod commits;
mod common;
mod cut_commit;
mod damage;
mod devices;
mod handover;
mod jobs;
mod late;
mod leaving;
mod model;
mod modes;
mod monitor;
mod offline;
mod on_record;
mod origin_away;
mod overflow;
mod prepare;
mod released_detached;
mod shared_base;
mod shares;
mod status;
mod takeover;
mod whole;
