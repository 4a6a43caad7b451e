//! Whether a broker lives, and does what it is there for.

use kera_controller::refused;
use kera_log_segments::sync::Ordering;

use crate::shared::Shared;
use crate::unreadable;

impl Shared {
    /// Whether the process can go on as it is: a new start would not mend what keeps it from being ready.
    ///
    /// # Errors
    /// One line for people: what has broken.
    pub(crate) fn liveness(&self) -> Result<(), String> {
        match self.fallen.first() {
            // The thread does not come back by itself; a new start does.
            Some(thread) => Err(format!(
                "the thread {thread} has panicked: restart the broker"
            )),
            None => Ok(()),
        }
    }

    /// Whether the broker does what it is there for.
    ///
    /// # Errors
    /// One line for people: why not.
    pub(crate) fn readiness(&self) -> Result<(), &'static str> {
        let disk_full = &self.data.env.disk_full;
        may_serve(
            *self.stopping.borrow(),
            disk_full.load(Ordering::Relaxed),
            self.data.directory.is_current(),
            self.stranger().is_some(),
        )?;
        if self.cannot_write().is_some() {
            return Err(
                "files cannot be written: the broker is given no streamlets until they can; the log says what the disk answers",
            );
        }
        if self.is_refused() {
            return Err(
                "certificate refused: the other brokers do not take the one in tls.certificate, and take over what this broker owned; the log says why",
            );
        }
        match self.coordination.is_unreadable() || unreadable::of_coordinators(self) {
            true => Err(
                "consumer groups cannot be read: appends and reads go on, joins and commits wait; the log says what is wrong and where",
            ),
            false => Ok(()),
        }
    }

    /// Why this broker cannot write its own files, for people, if it cannot and shares its store with others.
    pub(crate) fn cannot_write(&self) -> Option<String> {
        let clustered = self.clustered.as_ref()?;
        match self.data.env.disk_full.load(Ordering::Relaxed) {
            true => Some("its disk is full".to_owned()),
            false => clustered.disk.failing(),
        }
    }

    /// True if the other brokers refuse this one's certificate.
    fn is_refused(&self) -> bool {
        let clustered = self.clustered.as_ref();
        clustered.is_some_and(|here| {
            let refused = refused(&here.members.living());
            refused.contains_key(&self.broker_id)
        })
    }
}

pub(crate) fn may_serve(
    stopping: bool,
    disk_full: bool,
    member: bool,
    stranger: bool,
) -> Result<(), &'static str> {
    if stopping {
        return Err("draining: the broker stops");
    }
    if disk_full {
        return Err("disk full: appends are refused, reads are served");
    }
    if stranger {
        return Err(
            "wrong metadata store: what answers at cluster.store is another cluster's, empty, or older than what was seen of it; the log says which",
        );
    }
    if !member {
        return Err("no lease: the metadata store does not answer, others may take over");
    }
    Ok(())
}
