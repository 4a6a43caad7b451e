//! Which closed groups stay if all brokers that have replicas of them lose their power. Who closes a group says so, unless
//! disks are slow or a replica was lost; after a take-over nobody has said it. Then it is looked for here.

use kera_records::GroupRecord;

use super::lists::Held;
use super::{Jobs, Owned};
use crate::ids::CopyId;
use crate::primary::Primary;
use crate::transport::Request;

/// Files of the owner's own that a round flushes for this: each is read to its end.
const OWN_FILES: usize = 4;

impl Jobs {
    /// Tells streamlets, as far as they ask, which of their closed groups enough brokers have on their disks.
    pub(super) async fn tell_flushed(&self, primary: &Primary, owned: &[Owned], held: &Held) {
        let mut own_files = OWN_FILES;
        for one in owned {
            let Some(mend) = &one.mend else { continue };
            let asked = mend.unflushed();
            if asked.is_empty() {
                continue;
            }
            let Some(found) = self.remembered(primary, one).await else {
                continue;
            };
            for (group, generation) in asked {
                let record = found.group(group);
                let record = record.filter(|one| one.is_closed() && one.generation == generation);
                let Some(record) = record else { continue };
                let copy = CopyId::of(record);
                let holders = || record.copies.iter().map(|holder| holder.broker);
                let on_disk = holders().filter(|broker| held.is_flushed(*broker, copy));
                let lacking = one.min_insync_replicas.saturating_sub(on_disk.count());
                let may_be_own = lacking == 1
                    && own_files > 0
                    && holders().any(|broker| primary.is_own(broker))
                    && mend.is_settled(record);
                let is_flushed = match may_be_own {
                    true => {
                        own_files -= 1;
                        self.flush_own(primary, record).await
                    }
                    false => lacking == 0,
                };
                if is_flushed {
                    mend.flushed(record);
                }
            }
        }
    }

    async fn flush_own(&self, primary: &Primary, record: &GroupRecord) -> bool {
        let copy = CopyId::of(record);
        self.pace.take(&*primary.runtime, record.length).await;
        let flush = Request::flush_closed(copy, record.length);
        match primary.caller().ask(primary.me, flush).await {
            Ok(_) => true,
            Err(error) => {
                tracing::info!(group = %copy, %error, "this broker's own file of a closed group is not flushed yet");
                false
            }
        }
    }
}
