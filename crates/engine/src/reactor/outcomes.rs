//! Handling of the core's events: who is notified, and what remains to be done here when a job has ended.

use haversack_core::{Event, JobError, JobId, RequestError};
use haversack_model::{DeviceNo, DiskHandle, DiskNo};

use super::Reactor;
use crate::event::EngineEvent;
use crate::front::Tag;

/// What to do when a job has succeeded.
pub(crate) enum Afterwards {
    Detached(DiskHandle),
    Removed(DeviceNo),
    Stopped,
    Resized(DiskHandle, u64),
}

impl Reactor {
    pub(super) fn core_event(&mut self, event: Event) {
        match event {
            Event::JobDone { job, result } => self.job_done(job, result),
            Event::DeviceFailed { device, lost_blocks } => {
                self.tell(&EngineEvent::DeviceFailed { device, lost_blocks });
                self.siblings.device_failed(device);
                self.retire(device);
                if lost_blocks > 0 {
                    self.tell_losses();
                }
            }
            Event::PoolLost => self.tell(&EngineEvent::PoolLost { arena: self.siblings.arena() }),
            Event::Corruption { disk, sector, device, offset_bytes, lost } => {
                if let Some(info) = self.core.disk_info(disk) {
                    let disk = info.id;
                    let offset_bytes = offset_bytes + self.start_bytes(device);
                    self.tell(&EngineEvent::Corruption { disk, sector, device, offset_bytes, lost });
                }
            }
            Event::CleanFailed { disk } => {
                if let Some(info) = self.core.disk_info(disk) {
                    self.tell(&EngineEvent::CleanFailed { disk: info.id });
                }
            }
        }
    }

    fn job_done(&mut self, job: JobId, result: std::result::Result<(), JobError>) {
        self.after_job(job, result.is_ok());
        self.mover_job_done(job, result);
        self.jobs.retain(|(id, sender)| {
            if *id == job {
                // The caller may have given up waiting.
                let _ = sender.send(result);
            }
            *id != job
        });
    }

    fn tell_losses(&mut self) {
        let numbers: Vec<DiskNo> = self.core.disk_numbers().collect();
        for number in numbers {
            let runs = self.core.lost_runs(number);
            if let Some(info) = self.core.disk_info(number).filter(|_| !runs.is_empty()) {
                self.tell(&EngineEvent::DataLost { disk: info.id, runs });
            }
        }
    }

    fn tell_given_up(&mut self, number: DiskNo) {
        let runs = self.core.given_up(number).to_vec();
        if let Some(info) = self.core.disk_info(number).filter(|_| !runs.is_empty()) {
            self.tell(&EngineEvent::LossAccepted { disk: info.id, runs });
        }
    }

    fn after_job(&mut self, job: JobId, succeeded: bool) {
        let Some(at) = self.afterwards.iter().position(|(id, _)| *id == job) else { return };
        let (_, afterwards) = self.afterwards.swap_remove(at);
        if !succeeded {
            return;
        }
        match afterwards {
            Afterwards::Detached(disk) => self.is_detached(disk),
            Afterwards::Removed(device) => self.retire(device),
            Afterwards::Stopped => self.stopped_cleanly = true,
            Afterwards::Resized(disk, sectors) => {
                for client in self.clients_of(disk) {
                    self.client(client, |client, _| client.resized(sectors));
                }
            }
        }
    }

    /// Removes the state of a disk that is no longer attached.
    pub(crate) fn is_detached(&mut self, disk: DiskHandle) {
        self.tell_given_up(disk.number());
        for client in self.clients_of(disk) {
            self.client(client, |client, context| client.close(context));
        }
        // These requests still wait for their turn. They fail like requests of this disk that had reached the core: the
        // core refuses them while it detaches the disk.
        for request in self.turns.remove(disk) {
            let Tag { client, slot, .. } = Tag::decode(request.tag);
            self.completed(Tag::refused(client, slot).encode(), Err(RequestError::Detached));
        }
        self.mover_detached(disk);
        self.disks.detach(disk);
        self.origin(disk, |origin, context| origin.close(context));
        self.disks.drop_ended();
    }

    pub(crate) fn tell(&mut self, event: &EngineEvent) {
        self.subscribers.retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }
}
