//! Whether a disk may be attached with its origin, by what pools have of this disk and of others.

use haversack_api::{DiskConfig, redact};
use haversack_engine::label::{self, Label};
use haversack_model::DiskId;

use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::exclusive::Store;
use crate::locked::Locked;
use crate::pool::Pool;

/// Refuses an origin other than the one whose blocks are cached: those blocks would be read in place of its
/// own, and the dirty ones written over its data.
pub(crate) fn refuse_other_origin(pool: &Pool, config: &DiskConfig, id: DiskId) -> Result<()> {
    let Some(known) = pool.known(id).filter(|known| known.cached_bytes + known.dirty_bytes > 0) else {
        return Ok(());
    };
    let label = pool.backend.disk_labels()?.into_iter().find(|label| label.id.0 == id.0);
    let Some(label) = label.filter(|label| !label.is_of(&config.origin)) else { return Ok(()) };
    let name = &config.name;
    let [before, now] = [&label.place, &config.origin].map(|origin| redact::text(origin));
    if config.accept_origin_change.as_ref() == Some(name) {
        tracing::warn!(disk = name, before, now, "attaching with another origin");
        return Ok(());
    }
    Err(DaemonError::conflict(
        format!(
            "disk '{name}' has {} cached bytes, {} of them dirty, of another origin, {before}; the origin named now is {now}, \
             another one or another file of that name",
            known.cached_bytes, known.dirty_bytes
        ),
        "name the origin that it had; or forget the disk; or, if it is the same data, repeat its name as \
         accept_origin_change",
    ))
}

/// Refuses to attach a disk read-only whose dirty blocks would never be written back.
pub(crate) fn refuse_dirty_read_only(pool: &Pool, config: &DiskConfig, id: DiskId) -> Result<()> {
    let dirty_bytes = pool.known(id).map_or(0, |known| known.dirty_bytes);
    if !config.read_only || dirty_bytes == 0 {
        return Ok(());
    }
    Err(DaemonError::conflict(
        format!(
            "disk '{}' has {dirty_bytes} dirty bytes, which cannot be written to a read-only origin",
            config.name
        ),
        "attach it without read_only, and detach it",
    ))
}

impl Daemon {
    /// Refuses an origin of which any pool has dirty blocks that the disk would not see.
    pub(crate) fn refuse_dirty_elsewhere(&self, config: &DiskConfig, id: DiskId) -> Result<()> {
        self.refuse_dirty_in_closed_pool(config, id)?;
        self.pools().try_for_each(|pool| refuse_dirty_in(pool, config, id))
    }
}

/// Refuses an origin of which a pool has dirty blocks that the disk would not see, for example because the disk was
/// renamed or is now attached in another pool. The guest would read older data, and those blocks might overwrite its
/// writes later.
fn refuse_dirty_in(pool: &Pool, config: &DiskConfig, id: DiskId) -> Result<()> {
    let is_own = |other: DiskId| pool.name == config.pool && other == id;
    let known = pool.known.locked().clone();
    let dirty: Vec<_> =
        known.iter().filter(|(other, known)| known.dirty_bytes > 0 && !is_own(**other)).collect();
    if dirty.is_empty() {
        return Ok(());
    }
    let store = Store::of(&config.origin);
    for label in pool.backend.disk_labels()?.iter().filter(|label| is_of(label, config, &store)) {
        let Some((other, known)) = dirty.iter().find(|(other, _)| other.0 == label.id.0) else { continue };
        return Err(DaemonError::conflict(
            format!(
                "pool '{}' has {} dirty bytes of {}, which disk '{}' in pool '{}' would not see: they are of disk '{}' with id \
                 {other}",
                pool.name,
                known.dirty_bytes,
                redact::text(&config.origin),
                config.name,
                config.pool,
                label.name
            ),
            "attach it in that pool, with that disk's name or id, to keep them; or destroy them with 'haversack disk forget ID'",
        ));
    }
    Ok(())
}

/// Returns whether a label names this origin, even if it is written differently. Files are compared by inode.
fn is_of(label: &Label, config: &DiskConfig, store: &Store) -> bool {
    let is_whole = label.place_crc == label::place_crc(&label.place);
    let names_store = || Store::of(&label.place).shared(store).is_some();
    label.is_of(&config.origin) || (label.inode == 0 && is_whole && names_store())
}
