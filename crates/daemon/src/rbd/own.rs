//! Which of an image's clients are the helpers of a disk that does not move.
//!
//! The cluster lists a client by the address of its host, and keeps listing a killed helper for half a minute. So a
//! helper that replaces another one finds clients on this host that must not keep it out. But a program on this host
//! that has opened the image in the meantime must keep it out.
//!
//! Invariant
//! - Once the first helper is admitted, a client counts as a helper only if it was the only new client while a helper
//!   was started. Before that, all clients on this host count as helpers: an earlier daemon may have left them
//!   ([`super::watchers`] looks for others when the disk is attached).

use std::collections::HashSet;
use std::net::IpAddr;

use super::watchers::is_local;

/// The helpers among the clients of an image.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    /// The addresses of the known helpers; `None` before the first is started.
    known: Option<HashSet<String>>,
    /// Other clients on this host when the current helper was started.
    strangers: HashSet<String>,
}

impl Helpers {
    /// Prepares for the start of a helper, while these clients have the image open.
    pub fn starting(&mut self, clients: &[String], local: &[IpAddr]) {
        let here = clients.iter().filter(|client| is_local(client, local)).cloned();
        match &self.known {
            None => self.known = Some(here.collect()),
            Some(known) => self.strangers = here.filter(|client| !known.contains(client)).collect(),
        }
    }

    /// Called when the helper has opened the image, and these clients have it open. Returns those that are no helpers.
    pub fn started(&mut self, clients: &[String], local: &[IpAddr]) -> Vec<String> {
        let known = self.known.get_or_insert_default();
        let is_new = |client: &&String| {
            is_local(client, local) && !known.contains(*client) && !self.strangers.contains(*client)
        };
        if let [helper] = clients.iter().filter(is_new).collect::<Vec<_>>()[..] {
            known.insert(helper.clone());
        }
        clients.iter().filter(|client| !known.contains(*client)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1))];

    /// Starts a helper while `before` have the image open; then `after` have. Returns those that keep it out.
    fn start(helpers: &mut Helpers, before: &[&str], after: &[&str]) -> Vec<String> {
        let list = |clients: &[&str]| clients.iter().map(|client| client.to_string()).collect::<Vec<_>>();
        helpers.starting(&list(before), &LOCAL);
        helpers.started(&list(after), &LOCAL)
    }

    const LEFT: &str = "10.0.0.1:0/1";
    const FIRST: &str = "10.0.0.1:0/2";
    const SECOND: &str = "10.0.0.1:0/3";
    const PROGRAM: &str = "10.0.0.1:0/4";
    const ELSEWHERE: &str = "v1:10.0.0.2:0/5";

    #[test]
    fn what_is_left_of_earlier_helpers_keeps_none_out() {
        let mut helpers = Helpers::default();
        assert!(start(&mut helpers, &[LEFT], &[LEFT, FIRST]).is_empty());
        assert!(start(&mut helpers, &[LEFT, FIRST], &[LEFT, FIRST, SECOND]).is_empty());
    }

    #[test]
    fn a_client_on_another_host_keeps_a_helper_out_while_it_has_the_image_open() {
        let mut helpers = Helpers::default();
        assert!(start(&mut helpers, &[], &[FIRST]).is_empty());
        assert_eq!(start(&mut helpers, &[FIRST, ELSEWHERE], &[FIRST, SECOND, ELSEWHERE]), [ELSEWHERE]);
        // The helper SECOND was stopped, and is still listed.
        assert_eq!(start(&mut helpers, &[SECOND], &[SECOND, PROGRAM, ELSEWHERE]), [ELSEWHERE]);
        assert!(start(&mut helpers, &[SECOND, PROGRAM], &[SECOND, PROGRAM]).is_empty());
    }

    #[test]
    fn a_program_on_this_host_keeps_a_helper_out_while_it_has_the_image_open() {
        let mut helpers = Helpers::default();
        assert!(start(&mut helpers, &[], &[FIRST]).is_empty());
        assert_eq!(start(&mut helpers, &[FIRST, PROGRAM], &[FIRST, PROGRAM, SECOND]), [PROGRAM]);
        assert!(start(&mut helpers, &[FIRST, SECOND], &[SECOND, LEFT]).is_empty());
    }

    #[test]
    fn two_clients_that_come_at_a_time_are_not_told_apart() {
        let mut helpers = Helpers::default();
        assert!(start(&mut helpers, &[], &[FIRST]).is_empty());
        assert_eq!(start(&mut helpers, &[FIRST], &[PROGRAM, SECOND]), [PROGRAM, SECOND]);
        // The helper was stopped, and the program still has the image open.
        assert_eq!(start(&mut helpers, &[PROGRAM], &[PROGRAM, LEFT]), [PROGRAM]);
        assert!(start(&mut helpers, &[LEFT], &[LEFT]).is_empty());
    }
}
