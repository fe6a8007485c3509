//! The commands of the documents that `documented_commands` does not run, and what runs them.

/// Commands of a page that are run elsewhere, or nowhere.
pub(super) struct Elsewhere {
    /// The page, from the workspace's root.
    pub(super) page: &'static str,
    /// What the commands begin with.
    pub(super) begins: &'static str,
    /// Why they are not run on a page's own host.
    pub(super) why: &'static str,
    /// The file that runs the same, and what it contains of it: a test's function, or the program's call. `None`:
    /// nothing runs it.
    pub(super) by: Option<(&'static str, &'static str)>,
}

/// Short for a row.
const fn row(
    page: &'static str,
    begins: &'static str,
    why: &'static str,
    by: Option<(&'static str, &'static str)>,
) -> Elsewhere {
    Elsewhere { page, begins, why, by }
}

const SERVICE: &str = "it needs systemd as the first process";
const SUITE: &str = "it is what runs the suite";
const GUEST: &str = "it is typed in a guest with a shell";
const LIBVIRT: &str = "it needs libvirtd, which make libvirt-test installs";
const UBLK: &str = "it needs a kernel with the ublk driver";
const OTHERS: &str =
    "other software, which needs drivers of its own and is not in the suite; the page says so";
const PROXMOX: &str = "Proxmox VE is not in Debian; tests/proxmox calls the plug-in as it does";

const MANAGER: &str = "it is a program for a manager of VMs on other hosts";

const MOVES_VM: &str = "it needs guests on two hosts, and their monitors";

const REPLICA: &str = "it needs an owner with a replica, which the test of replicas has";

const NFS: &str = "it needs an NFS server, which is not among what scripts/setup installs: tried by hand";

const UBLK_GUEST: &str = "scripts/ublk-guest";
const LIBVIRT_TEST: &str = "scripts/libvirt-test";
const SERVICE_TEST: &str = "scripts/service-test";
const ANSIBLE_TEST: &str = "scripts/ansible-test";

/// What [`super::PAGES`] do not run.
pub(super) const ELSEWHERE: &[Elsewhere] = &[
    row("README.md", "make run", "it installs packages and compiles", None),
    row("README.md", "make test", SUITE, Some(("Makefile", "\ntest: "))),
    row(
        "README.md",
        "systemctl enable --now haversackd",
        SERVICE,
        Some((SERVICE_TEST, "systemctl enable --now haversackd")),
    ),
    row("docs/ansible.md", "cd ", "on a controller", Some((ANSIBLE_TEST, "cd /srv/ansible"))),
    row(
        "docs/ansible.md",
        "cp ",
        "it needs the package",
        Some((ANSIBLE_TEST, "cp \"$deb\" \"$root/srv/ansible/haversack.deb\"")),
    ),
    row(
        "docs/ansible.md",
        "ansible-playbook",
        "it needs a Debian with systemd",
        Some((ANSIBLE_TEST, "ansible-playbook")),
    ),
    row("docs/cluster.md", "scp ", "it needs SSH servers on other hosts: the files are copied", None),
    row(
        "docs/cluster.md",
        "systemctl restart haversackd",
        SERVICE,
        Some((SERVICE_TEST, "systemctl restart haversackd")),
    ),
    row("docs/cluster.md", "set -e", MANAGER, None),
    row(
        "docs/lending.md",
        "haversack loan list",
        "it needs two hosts with a loan",
        Some((
            "tests/tests/cluster/spare.rs",
            "fn a_host_that_is_overloaded_borrows_what_another_has_to_spare_and_gives_it_back(",
        )),
    ),
    row(
        "docs/cluster.md",
        "ssh ",
        MANAGER,
        Some(("tests/tests/cluster/live/mod.rs", "fn guests_are_balanced_and_drained_whatever_is_killed(")),
    ),
    row(
        "docs/cluster.md",
        "haversack host forget",
        "it needs a host that is permanently dead",
        Some(("tests/tests/cluster/daemons.rs", "fn three_daemons_and_an_etcd_that_dies(")),
    ),
    row("docs/cluster.md", "exec virsh", MANAGER, None),
    row("docs/cluster.md", "exec ssh", MANAGER, None),
    row("docs/cluster.md", "exec openstack", MANAGER, None),
    row(
        "docs/compare-cluster.md",
        "haversack compare-cluster cloudcache-12",
        "it takes minutes",
        Some(("crates/sim/tests/cluster.rs", "fn twelve_vms_gain_by_moves_and_ours_gains_more(")),
    ),
    row("docs/dashboard.md", "ssh ", "it needs an SSH server on another host", None),
    row("docs/from-other-caches.md", "", OTHERS, None),
    row("docs/origins.md", "haversack disk attach vm2 nfs:", NFS, None),
    row("docs/origins.md", "fio --ioengine=nbd --uri='nbd+unix:///vm2", NFS, None),
    row("docs/origins.md", "haversack disk flush vm2", NFS, None),
    row("docs/origins.md", "qemu-img compare -f raw -F raw 'nbd+unix:///vm2", NFS, None),
    row("docs/proxmox.md", "systemctl", PROXMOX, None),
    row(
        "docs/qemu-libvirt.md",
        "guest# ",
        GUEST,
        Some(("tests/tests/vhost_user.rs", "fn every_request_works_and_reaches_the_origin(")),
    ),
    row("docs/qemu-libvirt.md", "virsh define", LIBVIRT, Some((LIBVIRT_TEST, "virsh alpha define"))),
    row("docs/qemu-libvirt.md", "virsh start", LIBVIRT, Some((LIBVIRT_TEST, "virsh alpha start"))),
    row("docs/qemu-libvirt.md", "virsh list", LIBVIRT, Some((LIBVIRT_TEST, "virsh alpha list"))),
    row("docs/qemu-libvirt.md", "virsh domblklist", LIBVIRT, Some((LIBVIRT_TEST, "virsh alpha domblklist"))),
    row(
        "docs/qemu-libvirt.md",
        "virsh attach-device",
        LIBVIRT,
        Some((LIBVIRT_TEST, "virsh alpha attach-device")),
    ),
    row(
        "docs/qemu-libvirt.md",
        "virsh detach-device",
        LIBVIRT,
        Some((LIBVIRT_TEST, "virsh alpha detach-device")),
    ),
    row("docs/qemu-libvirt.md", "virsh domblkinfo", LIBVIRT, Some((LIBVIRT_TEST, "virsh alpha domblkinfo"))),
    row(
        "docs/qemu-libvirt.md",
        "virt-xml-validate",
        LIBVIRT,
        Some((LIBVIRT_TEST, "on alpha virt-xml-validate")),
    ),
    row(
        "docs/qemu-libvirt.md",
        "systemctl restart libvirtd",
        "pkill ends it there, and it is started without systemd",
        Some((LIBVIRT_TEST, "pkill --parent \"${libvirtd[alpha]}\"")),
    ),
    row(
        "docs/qemu-libvirt.md",
        "qemu-system-x86_64 ... ",
        "two QEMUs and their monitor",
        Some(("tests/tests/migration.rs", "fn a_guest_under_load_moves_to_another_qemu(")),
    ),
    row(
        "docs/qemu-libvirt.md",
        "(qemu) ",
        "two QEMUs and their monitor",
        Some(("tests/tests/migration.rs", "fn a_guest_under_load_moves_to_another_qemu(")),
    ),
    row("docs/quick-start.md", "git clone", "the suite runs in a clone", None),
    row("docs/quick-start.md", "scripts/setup", SUITE, Some(("Makefile", "./scripts/setup"))),
    row("docs/quick-start.md", "make packages", "it compiles", Some(("Makefile", "packages-test: packages"))),
    row(
        "docs/quick-start.md",
        "sudo apt install",
        "dpkg installs it in a Debian of its own, without what it depends on",
        Some(("scripts/packages-test", "dpkg --install")),
    ),
    row(
        "docs/quick-start.md",
        "systemctl enable",
        SERVICE,
        Some((SERVICE_TEST, "systemctl enable --now haversackd")),
    ),
    row(
        "docs/quick-start.md",
        "systemctl restart",
        SERVICE,
        Some((SERVICE_TEST, "systemctl restart haversackd")),
    ),
    row(
        "docs/quick-start.md",
        "journalctl",
        SERVICE,
        Some((SERVICE_TEST, "journalctl --no-pager -o cat -u haversackd")),
    ),
    row(
        "docs/quick-start.md",
        "guest# ",
        GUEST,
        Some(("tests/tests/vhost_user.rs", "fn every_request_works_and_reaches_the_origin(")),
    ),
    row(
        "docs/snapshots.md",
        "haversack disk quiesce vm1 -- sh -c",
        LIBVIRT,
        Some(("tests/tests/quiesce.rs", "fn a_snapshot_without_an_agent_has_what_was_acknowledged(")),
    ),
    row(
        "docs/cli.md",
        "haversack disk set vm1 --replicate beta",
        REPLICA,
        Some(("tests/tests/replication.rs", "fn a_replica_is_set_ended_and_moved_under_load")),
    ),
    row(
        "docs/replication.md",
        "haversack disk own vm1 --dry-run",
        REPLICA,
        Some((
            "tests/tests/replication.rs",
            "fn all_that_was_flushed_is_there_when_the_owner_dies_under_load",
        )),
    ),
    row(
        "docs/migration.md",
        "qemu-system-x86_64 ... ",
        MOVES_VM,
        Some(("tests/tests/moves/main.rs", "fn guests_move_again_and_again_whatever_fails(")),
    ),
    row(
        "docs/migration.md",
        "haversack migrate vm1 vm2",
        MOVES_VM,
        Some(("tests/tests/moves/main.rs", "fn guests_move_again_and_again_whatever_fails(")),
    ),
    row("docs/origins.md", "iscsiadm", "it needs a kernel with an iSCSI initiator", None),
    row("docs/trace.md", "cargo run", "it compiles", None),
    row("docs/ublk.md", "modprobe ublk_drv", UBLK, Some((UBLK_GUEST, "modprobe -d"))),
    row(
        "docs/ublk.md",
        "haversack-ublk --id 0 'nbd+unix:///vm1",
        UBLK,
        Some((UBLK_GUEST, "haversack-ublk \"$@\"")),
    ),
    row("docs/ublk.md", "mkfs.ext4 -q /dev/ublkb0", UBLK, Some((UBLK_GUEST, "mkfs.ext4 -q /dev/ublkb0"))),
    row(
        "docs/ublk.md",
        "mount -o discard /dev/ublkb0",
        UBLK,
        Some((UBLK_GUEST, "mount -t ext4 -o discard /dev/ublkb0")),
    ),
    row(
        "docs/ublk.md",
        "systemctl",
        "it needs systemd and the ublk driver; the program alone is run in a guest",
        None,
    ),
    row("docs/ublk.md", "cd /sys/block/ublkb0", UBLK, Some((UBLK_GUEST, "cd /sys/block/ublkb0"))),
    row("docs/ublk.md", "grep . size", UBLK, Some((UBLK_GUEST, "grep . size"))),
    row(
        "docs/ublk.md",
        "haversack-ublk --id 0 'nbd+unix:///vm2",
        UBLK,
        Some((UBLK_GUEST, "haversack-ublk \"$@\"")),
    ),
];
