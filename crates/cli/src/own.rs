//! `haversack disk own`: taking a disk over from a permanently dead host.

use haversack_api::{KeptReplica, OwnDisk, Size, Takeover};
use hyper::Method;

use crate::arguments::Own;
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output::{Style, print};
use crate::run::{ask, part, work};

/// Ranges that are shown to people.
const MOST_SHOWN: usize = 20;

/// Shows what would be lost, has the disk's name typed, and takes the disk over.
pub fn own(client: &Client, own: &Own, style: Style) -> Result<()> {
    let name = &own.name;
    let path = format!("/v1/disks/{}/own", part(name)?);
    if own.confirm.as_ref().is_some_and(|typed| typed != name) {
        return Err(CliError::NotConfirmed(name.clone()));
    }
    let takeover: Takeover = client.get(&path)?;
    if own.dry_run {
        return print(style.as_json, &takeover, &describe(&takeover, own));
    }
    let confirm = match &own.confirm {
        Some(typed) => typed.clone(),
        None => ask(&format!("{}type '{name}' to take the disk over: ", describe(&takeover, own)))?,
    };
    if confirm != *name {
        return Err(CliError::NotConfirmed(name.clone()));
    }
    let body = OwnDisk {
        confirm,
        accept_loss: own.accept_loss.clone(),
        without_fence: own.without_fence.clone(),
        owner_stopped: own.owner_stopped,
    };
    work(client, Method::POST, &path, Some(&body), &format!("{name}: taken over"), style)
}

fn describe(takeover: &Takeover, own: &Own) -> String {
    let Takeover { disk, host, .. } = takeover;
    let mut text = match takeover.has_nothing {
        false => format!("Host '{host}' does not answer.\n"),
        true => format!("Host '{host}' answers, and has neither disk '{disk}' nor dirty blocks of it.\n"),
    };
    if let Some(last) = &takeover.last_known {
        let mode = last.mode.as_ref().map_or_else(String::new, |mode| format!("write mode {mode}, "));
        let dirty = Size(last.dirty_bytes);
        text += &format!("  It last reported {:.0} s ago: {mode}{dirty} dirty.\n", last.age_s);
    }
    match takeover.lost_bytes {
        Some(0) => text += "  It has no data that exists only there, so nothing is lost.\n",
        Some(bytes) => {
            text += &format!("  {} of disk '{disk}' exist only there and will be lost:\n", Size(bytes));
            for range in takeover.ranges.iter().take(MOST_SHOWN) {
                let last = range.offset_bytes + range.length_bytes - 1;
                text += &format!("    bytes {}-{last}\n", range.offset_bytes);
            }
            let hidden = takeover.ranges.len().saturating_sub(MOST_SHOWN) as u64 + takeover.more_ranges;
            if hidden > 0 {
                text += &format!("    and {hidden} more ranges: --dry-run --json lists them\n");
            }
            text += match own.accept_loss {
                Some(_) => "  Reads will return the origin's data.\n",
                None => "  Reads of these ranges will fail until they are written again.\n",
            };
        }
        None if takeover.replica.as_ref().is_some_and(|replica| replica.is_used(own.owner_stopped)) => {
            text += "  Nothing that was flushed is lost: this host has a complete replica of what was dirty there.\n  Writes \
                     after the last flush may be lost.\n";
        }
        None => {
            text += &format!(
                "  It is not known which blocks only host '{host}' had; for those the guest will read older data from the origin.\n  \
                 That needs --accept-loss {disk}.\n"
            );
        }
    }
    text += &takeover.replica.as_ref().map_or_else(String::new, |replica| describe_replica(replica, own));
    if let Some(host) = &takeover.replica_elsewhere {
        text += &format!(
            "  According to the directory, host '{host}' had a complete replica. It does not answer: if it can be repaired, take the disk \
             over on that host.\n"
        );
    }
    if takeover.kept_bytes > 0 {
        text += &format!("  {} that are dirty here are kept.\n", Size(takeover.kept_bytes));
    }
    if !takeover.fenced_first.is_empty() {
        let is_off = |host: &&String| own.without_fence.contains(host);
        let (off, others): (Vec<&String>, Vec<&String>) = takeover.fenced_first.iter().partition(is_off);
        let joined =
            |hosts: &[&String]| hosts.iter().map(|host| host.as_str()).collect::<Vec<_>>().join(", ");
        if !off.is_empty() {
            text += &format!("  Not fenced: {}. Make sure that they are off and stay off.\n", joined(&off));
        }
        let hosts = joined(&others);
        text += &match &takeover.fence {
            _ if others.is_empty() => String::new(),
            Some(program) => format!("  Will be fenced first, by {program}: {hosts}.\n"),
            None => format!("  To be fenced first: {hosts}, but no fence is configured.\n"),
        };
    }
    text
}

fn describe_replica(replica: &KeptReplica, own: &Own) -> String {
    let heard = replica.heard_s.map_or_else(
        || "not since this daemon was started".to_owned(),
        |heard_s| format!("{heard_s:.1} s ago"),
    );
    let mut text = format!(
        "  This host has a replica of {} that were dirty on host '{}', which was last heard {heard}.\n",
        Size(replica.bytes),
        replica.of
    );
    text += match replica {
        KeptReplica { is_void: true, .. } => "  The disk has moved on since: the replica is not used.\n",
        KeptReplica { is_complete: false, .. } => "  It is not complete: it is not used.\n",
        KeptReplica { is_certain: true, .. } => "  It is complete.\n",
        _ if own.owner_stopped => {
            "  It was complete then, and is used since the owner stopped at that time.\n"
        }
        _ => {
            "  It was complete then. The owner may have gone on without it since: it is used only with --owner-stopped,\n  \
             which says that the owner died or was fenced within five seconds after that. With --accept-loss alone it is\n  \
             dropped.\n"
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use haversack_api::LostRange;

    use super::*;

    fn takeover() -> Takeover {
        Takeover {
            disk: "vm1".into(),
            host: "alpha".into(),
            has_nothing: false,
            depends: false,
            lost_bytes: None,
            ranges: Vec::new(),
            more_ranges: 0,
            last_known: None,
            kept_bytes: 0,
            replica: None,
            replica_elsewhere: None,
            fenced_first: vec!["alpha".into()],
            fence: None,
        }
    }

    fn arguments() -> Own {
        Own {
            name: "vm1".into(),
            confirm: None,
            accept_loss: None,
            without_fence: Vec::new(),
            owner_stopped: false,
            dry_run: true,
        }
    }

    #[test]
    fn what_is_not_known_is_said() {
        let text = describe(&takeover(), &arguments());
        assert!(text.contains("not known which blocks") && text.contains("--accept-loss vm1"), "{text}");
        assert!(text.contains("no fence is configured"), "{text}");
    }

    #[test]
    fn it_is_said_whether_the_replica_is_used() {
        let kept = KeptReplica {
            of: "alpha".into(),
            bytes: 8192,
            is_complete: true,
            is_certain: false,
            heard_s: Some(12.0),
            is_void: false,
        };
        let stopped = Own { owner_stopped: true, ..arguments() };
        let shown = |replica, own: &Own| describe(&Takeover { replica: Some(replica), ..takeover() }, own);
        let (used, needed) = ("Nothing that was flushed is lost", "only with --owner-stopped");
        let text = shown(kept.clone(), &arguments());
        assert!(text.contains(needed) && text.contains("12.0 s ago") && !text.contains(used), "{text}");
        assert!(shown(kept.clone(), &stopped).contains(used));
        let certain = KeptReplica { is_certain: true, ..kept.clone() };
        assert!(shown(certain, &arguments()).contains(used));
        for useless in
            [KeptReplica { is_complete: false, ..kept.clone() }, KeptReplica { is_void: true, ..kept }]
        {
            let text = shown(useless, &stopped);
            assert!(text.contains("not used") && !text.contains(used), "{text}");
        }
    }

    #[test]
    fn what_is_known_is_listed() {
        let lost = Takeover {
            lost_bytes: Some(8192),
            ranges: vec![LostRange { offset_bytes: 4096, length_bytes: 8192 }],
            depends: true,
            fenced_first: Vec::new(),
            ..takeover()
        };
        let text = describe(&lost, &arguments());
        assert!(text.contains("8KiB of disk 'vm1'") && text.contains("bytes 4096-12287"), "{text}");
        assert!(text.contains("will fail"), "{text}");
        let accepted = Own { accept_loss: Some("vm1".into()), ..arguments() };
        assert!(describe(&lost, &accepted).contains("the origin's data"));
    }

    #[test]
    fn a_host_that_is_away_with_the_replica_is_named() {
        let text =
            describe(&Takeover { replica_elsewhere: Some("gamma".into()), ..takeover() }, &arguments());
        assert!(text.contains("host 'gamma' had a complete replica"), "{text}");
        assert!(!describe(&takeover(), &arguments()).contains("replica"));
    }

    #[test]
    fn a_host_that_has_lost_the_disk_is_not_said_to_be_silent() {
        let text = describe(&Takeover { has_nothing: true, ..takeover() }, &arguments());
        assert!(text.contains("answers, and has neither") && text.contains("--accept-loss vm1"), "{text}");
    }
}
