//! `haversack loan`: flash that this host lends to others, and borrows from them.

use std::fmt::Write;

use clap::Subcommand;
use haversack_api::{BorrowedLoans, LendingPool, LentLoans, Loans, Size};

use crate::client::Client;
use crate::cluster::{percent, plain, seconds};
use crate::error::Result;
use crate::output::print;

/// Commands for loans of flash.
#[derive(Subcommand)]
pub enum LoanCommand {
    /// List what this host lends to others, and what its disks borrow.
    List,
}

/// Runs `haversack loan`.
pub fn run(client: &Client, command: &LoanCommand, as_json: bool) -> Result<()> {
    match command {
        LoanCommand::List => {
            let loans: Loans = client.get("/v1/loans")?;
            print(as_json, &loans, &plain(&show(&loans)))
        }
    }
}

fn show(loans: &Loans) -> String {
    if loans.lends.is_empty() && loans.borrowed.is_empty() {
        return "This host lends and borrows no flash: see [lend] and [borrow] in lending.md.\n".into();
    }
    let mut text = String::new();
    loans.lends.iter().for_each(|pool| text += &lends(pool));
    if !loans.lent.is_empty() {
        text += &lent(&loans.lent);
    }
    if !loans.borrowed.is_empty() {
        text += &borrowed(&loans.borrowed);
    }
    text
}

fn size(bytes: u64) -> String {
    Size(bytes).rounded().to_string()
}

fn lends(pool: &LendingPool) -> String {
    format!(
        "pool {} lends {} of {} at most; {} more could be lent now; {} taken back\n",
        pool.pool,
        size(pool.promised_bytes),
        size(pool.capacity_bytes),
        size(pool.spare_bytes),
        crate::output::counted(pool.taken_back, "loan"),
    )
}

fn lent(all: &[LentLoans]) -> String {
    let mut text = format!(
        "{:<16} {:<20} {:>5} {:>10} {:>10} {:>7} {:>10} {:>6}\n",
        "LENT TO", "DISK", "LOANS", "CAPACITY", "USED", "AGE", "ASKED", "HITS"
    );
    for one in all {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<16} {:<20} {:>5} {:>10} {:>10} {:>7} {:>10} {:>6}",
            one.host,
            one.disk,
            one.loans,
            size(one.capacity_bytes),
            size(one.used_bytes),
            seconds(one.age_s),
            one.asked_blocks,
            percent(one.hit_blocks, one.asked_blocks),
        );
    }
    text
}

fn borrowed(all: &[BorrowedLoans]) -> String {
    let mut text = format!(
        "{:<20} {:<16} {:<12} {:>5} {:>10} {:>10} {:>7} {:>10} {:>6} {:>9}\n",
        "DISK", "BORROWS FROM", "STATE", "LOANS", "CAPACITY", "USED", "AGE", "ASKED", "HITS", "LATENCY"
    );
    for one in all {
        let pause = one.pause_left_s.map_or(String::new(), |left| format!("  for {}", seconds(left)));
        let latency = match one.latency_us {
            us if us > 0.0 => format!("{:.2}ms", us / 1e3),
            _ => "-".into(),
        };
        let _ = writeln!(
            text,
            "{:<20} {:<16} {:<12} {:>5} {:>10} {:>10} {:>7} {:>10} {:>6} {latency:>9}{pause}",
            one.disk,
            one.host,
            one.state,
            one.loans,
            size(one.capacity_bytes),
            size(one.used_bytes),
            if one.loans > 0 { seconds(one.age_s) } else { "-".into() },
            one.asked_blocks,
            percent(one.hit_blocks, one.asked_blocks),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use haversack_api::LenderState;

    use super::*;

    #[test]
    fn loans_are_shown_on_both_sides() {
        let pool = LendingPool {
            pool: "main".into(),
            capacity_bytes: 50 << 30,
            promised_bytes: 1 << 30,
            spare_bytes: 2 << 30,
            taken_back: 1,
        };
        let lent = LentLoans {
            pool: "main".into(),
            host: "alpha".into(),
            disk: "vm1".into(),
            loans: 4,
            capacity_bytes: 1 << 30,
            used_bytes: 1 << 29,
            age_s: 42.0,
            asked_blocks: 1000,
            hit_blocks: 990,
        };
        let borrowed = BorrowedLoans {
            disk: "vm2".into(),
            host: "gamma".into(),
            state: LenderState::Paused,
            pause_left_s: Some(7.5),
            pauses: 3,
            loans: 1,
            capacity_bytes: 256 << 20,
            used_bytes: 64 << 20,
            age_s: 3.0,
            asked_blocks: 10,
            hit_blocks: 5,
            ended_loans: 0,
            latency_us: 260.0,
        };
        let loans = Loans { lends: vec![pool], lent: vec![lent], borrowed: vec![borrowed] };
        let text = show(&loans);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(text.starts_with("pool main lends 1.0 GiB of 50.0 GiB at most; 2.0 GiB more"), "{text}");
        assert_eq!(lines[2][..3], ["alpha", "vm1", "4"], "{text}");
        assert_eq!(lines[2][lines[2].len() - 2..], ["1000", "99%"], "{text}");
        assert_eq!(lines[4][..4], ["vm2", "gamma", "paused", "1"], "{text}");
        assert!(text.ends_with("50%    0.26ms  for 7.5s\n"), "{text}");
        assert!(show(&Loans::default()).contains("lends and borrows no flash"));
    }
}
