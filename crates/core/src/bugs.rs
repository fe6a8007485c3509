//! The bug zoo: planted bugs that the crash simulator must catch. Without the feature `bug-zoo`, `planted` is
//! always false at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A write is acknowledged before its staging descriptor is stored.
    AckBeforeStaging,
    /// A guest's flush does not flush the cache devices.
    SkipDeviceFlush,
    /// A flush of the pool counts for writes that were in flight when it started.
    FlushCoversRunning,
    /// A guest's flush does not flush the origin.
    SkipOriginFlush,
    /// A superseded slot is overwritten before the newer version is durable.
    ReuseSlotTooEarly,
    /// Dirty blocks are written to one device only.
    ForgetMirror,
    /// A rotten metadata page is silently replaced by its older sibling.
    AcceptOldPage,
    /// Data read from flash is not verified.
    IgnoreChecksum,
    /// A partial write marks the whole block valid.
    DropSectorMask,
    /// A write past the cache leaves the cached block.
    StaleAfterAround,
    /// A write leaves the block's data in the data stage.
    StaleDataStage,
    /// A write-back disk's write past the cache is acknowledged before the origin has made it durable.
    BypassUndurably,
    /// A write past the cache is not marked in the write-intent bitmap.
    SkipIntent,
    /// A write past the cache starts while a durable page calls an older version of its block dirty.
    OvertakeListed,
    /// The cleaner continues after the disk was released.
    CleanAfterRelease,
    /// A disk takes requests before its epoch is durably on record.
    AttachUnrecorded,
    /// A release ends before the record says durably that the disk is not owned.
    ReleaseUnrecorded,
    /// The cleaner writes blocks to the origin that are not durable in the cache.
    CleanUnflushed,
    /// Blocks count as clean before the origin was flushed.
    CleanWithoutOriginFlush,
    /// A page leaves out an entry while an older one of the block is listed elsewhere.
    OmitNewestFirst,
    /// Recovery lets the oldest version of a block win.
    OldestWins,
    /// A discard leaves dirty entries on flash.
    DiscardKeepsDirty,
    /// A metadata page is overwritten while its sibling is not durable.
    TwoUnflushedPages,
    /// Where a block is partially staged, its flash copy counts as newer.
    FlashOverStaging,
    /// The merge of a partial block with its flash copy overwrites newer sectors.
    MergeOldOverNew,
    /// A fill from the origin does not lock out writes to the block.
    FillWithoutLock,
    /// A block that was written is still read from the base.
    ShareWritten,
    /// A block that is dirty when sharing with the base begins is shared.
    ShareDirty,
    /// An answer that the origin gave before sharing began again is used.
    ShareOldAnswer,
    /// The write-intent bitmap is cleared without flushing the origin and rewriting stale pages.
    ClearIntentEarly,
    /// Recovery ignores the staging area.
    IgnoreStaging,
    /// Recovery trusts unflushed commits without verifying their data.
    TrustTornCommit,
    /// Recovery trusts a commit of which only one of two copies landed.
    KeepLoneCopy,
    /// An attach with a higher ownership epoch keeps the clean blocks.
    KeepOldEpoch,
    /// An attach keeps clean blocks that the caller knows to be outdated.
    AttachOutdated,
    /// The record says that a failed device is gone while pages elsewhere list as dirty what it had
    /// overtaken.
    LeaveAtOnce,
    /// Accepting the loss of some dirty blocks drops the others too.
    GiveUpAll,
    /// Dirty blocks are kept although a device is missing that may have had newer versions.
    TrustWhatIsLeft,
    /// The record says that a failed device is gone while pages elsewhere list as clean what it had
    /// overtaken, and those entries are trusted.
    TrustOvertaken,
    /// A pool is called whole while pages list entries that only one device has overtaken.
    WholeTooEarly,
    /// Lost sectors of a damaged block are read from the origin.
    HideDamage,
    /// A version of the record counts as durable as soon as it is wanted.
    RecordUnwritten,
    /// Flush marks cover commits that are completed but not flushed.
    MarkUnflushed,
    /// The loss of dirty blocks counts as recorded before the record is written.
    LossUnrecorded,
    /// A flush makes the record forget that a disk has lost sectors.
    HealLost,
    /// A pool is called rebuilt although dirty blocks lack their mirrored copy.
    RebuiltTooEarly,
    /// A disk grows over what pages still list from its larger past.
    GrowOverOld,
    /// A damaged block counts as clean as soon as the cleaner has written its valid sectors.
    CleanDamaged,
    /// A request that waits for staging frames is forgotten.
    ForgetWaiter,
    /// A disk is owned again under an epoch that it already had.
    ReuseEpoch,
    /// A new disk's intent pages start over, although an older disk had its number.
    RestartIntents,
    /// Segments are used before the record calls them prepared.
    UseUnprepared,
    /// The record calls segments prepared whose blank pages were not written.
    PrepareNothing,
    /// The record still names the last clean stop when the pool is used again.
    KeepStopName,
    /// Pieces of a checkpoint are not checked.
    TrustCheckpoint,
    /// A block that changes after its copy was sent to the next owner counts as unchanged.
    ForgetChange,
    /// Copies count as arrived as soon as they are sent.
    TrustSent,
    /// The cleaner of a disk whose blocks are cleaned in order writes newer groups beside the oldest.
    CleanOutOfOrder,
    /// A version that the guest has flushed is replaced by a newer one before it is clean, although blocks are
    /// cleaned in order.
    CommitOutOfOrder,
    /// A write past the cache does not wait for what was flushed before it, although blocks are cleaned in order.
    AroundOutOfOrder,
    /// A disk counts as frozen while blocks of it are staged.
    FreezeStaged,
    /// A disk counts as frozen before what it committed is durable.
    FreezeUnflushed,
    /// A disk counts as frozen while durable pages call clean blocks dirty.
    FreezeListed,
    /// A disk that a crash has left with dirty blocks is released as one that was detached.
    ReleaseLeftDirty,
    /// A disk counts as handed over before the record says so.
    HandOverUnrecorded,
    /// A block counts as forgotten while durable pages still call it dirty.
    ForgetUnlisted,
    /// A copy that arrives is mixed with the one before it.
    MixCopies,
    /// Copies that are out of date are kept when a disk is claimed.
    KeepOutdated,
    /// Copies are dropped or replaced without marking their regions.
    DropUnmarked,
    /// The list of the blocks that a peer has is ignored.
    LosePeerList,
    /// The record does not say that a disk still needs blocks from a peer.
    ForgetDependence,
    /// Blocks are written to the origin while a peer lists them as dirty.
    CleanUndrained,
    /// Sectors that come from a peer count as the whole block.
    FetchOverNewer,
    /// A peer may forget blocks that are not durable at their new owner.
    ConfirmUnflushed,
    /// An answer to an earlier question is accepted.
    BelieveOldAnswer,
    /// Blocks are forgotten for an owner of an earlier epoch.
    ForgetForAnyEpoch,
    /// Copies are kept although the source does not know any more which are out of date.
    KeepUnknownSession,
    /// A write past the cache, a discard or zeroes leave their blocks in the list of late copies.
    LateForgetsAround,
    /// A late copy is listed although its block was changed since the claim.
    ListChanged,
    /// A late copy that is being read does not lock out writes to its block.
    LateWithoutLock,
    /// A host counts as independent of a dead one while copies of what it had are not durable.
    GiveUpUnsettled,
    /// Blocks that only a dead host had are read from the origin although no operator has accepted that.
    LoseSilently,
    /// After a restart, the origin is assumed to have everything that a dead host had.
    AssumeNothing,
    /// A disk that is taken back from a dead host keeps its clean blocks.
    RetakeClean,
    /// A disk is served after a takeover while a part of its replica is only staged.
    RetakeStaged,
    /// A flush does not wait for the replica.
    FlushUnreplicated,
    /// A replica keeps blocks that the origin has overtaken.
    KeepReplicated,
    /// A replica's host confirms copies before they are durable.
    SealUnflushed,
    /// A replica is used although the owner may have gone on without it.
    UseUncertain,
    /// A host that returns ignores that its disks were taken over.
    MissTakeover,
    /// A disk is taken over although a reachable host has dirty blocks of it.
    TakeFromHolder,
    /// When a disk is passed on, the blocks that are kept for its next owner become void.
    VoidKept,
    /// A disk is taken over although a host that answers has a complete replica of it.
    YieldReplica,
    /// A replica that was left behind on another host is not dropped when that host asks.
    LeaveReplica,
    /// A replica stays on a host that is being drained.
    StayOnDrained,
}

/// All bugs that the simulator must catch.
pub const ALL: &[Bug] = &[
    Bug::AckBeforeStaging,
    Bug::SkipDeviceFlush,
    Bug::FlushCoversRunning,
    Bug::SkipOriginFlush,
    Bug::ReuseSlotTooEarly,
    Bug::ForgetMirror,
    Bug::AcceptOldPage,
    Bug::IgnoreChecksum,
    Bug::DropSectorMask,
    Bug::StaleAfterAround,
    Bug::StaleDataStage,
    Bug::BypassUndurably,
    Bug::SkipIntent,
    Bug::OvertakeListed,
    Bug::CleanAfterRelease,
    Bug::AttachUnrecorded,
    Bug::ReleaseUnrecorded,
    Bug::CleanUnflushed,
    Bug::CleanWithoutOriginFlush,
    Bug::OmitNewestFirst,
    Bug::OldestWins,
    Bug::DiscardKeepsDirty,
    Bug::TwoUnflushedPages,
    Bug::FlashOverStaging,
    Bug::MergeOldOverNew,
    Bug::FillWithoutLock,
    Bug::ShareWritten,
    Bug::ShareDirty,
    Bug::ShareOldAnswer,
    Bug::ClearIntentEarly,
    Bug::IgnoreStaging,
    Bug::TrustTornCommit,
    Bug::KeepLoneCopy,
    Bug::KeepOldEpoch,
    Bug::AttachOutdated,
    Bug::LeaveAtOnce,
    Bug::GiveUpAll,
    Bug::TrustWhatIsLeft,
    Bug::TrustOvertaken,
    Bug::WholeTooEarly,
    Bug::HideDamage,
    Bug::RecordUnwritten,
    Bug::MarkUnflushed,
    Bug::LossUnrecorded,
    Bug::HealLost,
    Bug::RebuiltTooEarly,
    Bug::GrowOverOld,
    Bug::CleanDamaged,
    Bug::ForgetWaiter,
    Bug::ReuseEpoch,
    Bug::RestartIntents,
    Bug::UseUnprepared,
    Bug::PrepareNothing,
    Bug::KeepStopName,
    Bug::TrustCheckpoint,
    Bug::CleanOutOfOrder,
    Bug::CommitOutOfOrder,
    Bug::AroundOutOfOrder,
];

/// Mistakes of migration, that the simulator of two hosts must catch.
pub const OF_MIGRATION: &[Bug] = &[
    Bug::ForgetChange,
    Bug::TrustSent,
    Bug::FreezeStaged,
    Bug::FreezeUnflushed,
    Bug::FreezeListed,
    Bug::ReleaseLeftDirty,
    Bug::HandOverUnrecorded,
    Bug::ForgetUnlisted,
    Bug::MixCopies,
    Bug::KeepOutdated,
    Bug::DropUnmarked,
    Bug::LosePeerList,
    Bug::ForgetDependence,
    Bug::CleanUndrained,
    Bug::FetchOverNewer,
    Bug::ConfirmUnflushed,
    Bug::BelieveOldAnswer,
    Bug::ForgetForAnyEpoch,
    Bug::KeepUnknownSession,
    Bug::LateForgetsAround,
    Bug::ListChanged,
    Bug::LateWithoutLock,
    Bug::GiveUpUnsettled,
    Bug::LoseSilently,
    Bug::AssumeNothing,
    Bug::RetakeClean,
    Bug::RetakeStaged,
    Bug::FlushUnreplicated,
    Bug::KeepReplicated,
    Bug::SealUnflushed,
    Bug::UseUncertain,
];

/// Mistakes of takeovers among many hosts, that the simulator of a cluster must catch.
pub const OF_TAKEOVERS: &[Bug] = &[Bug::MissTakeover, Bug::TakeFromHolder, Bug::VoidKept];

/// Mistakes of replicas among many hosts, that the simulator of a cluster with replicas must catch.
pub const OF_PLACES: &[Bug] = &[Bug::YieldReplica, Bug::LeaveReplica, Bug::StayOnDrained];

haversack_model::bug_switch!(Bug);
