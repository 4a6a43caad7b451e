//! Open groups that have fewer copies than their stream is to have, or have one at a broker that leaves:
//! an open group's set never changes, so once another broker could take a replica the group ends and the
//! lane goes on in one with all of them where they should be.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Primary;
use super::lane::Lane;
use super::replica_set::ReplicaSet;
use crate::ids::{AckPolicy, BrokerId};

/// Whether brokers could be had beside those that hold copies already, as found out in one round:
/// lanes with the same holders need not ask again.
#[derive(Debug, Default)]
pub(crate) struct MoreReplicas {
    beside: BTreeMap<(AckPolicy, Vec<BrokerId>), bool>,
}

impl MoreReplicas {
    async fn beside(
        &mut self,
        primary: &Primary,
        ack: AckPolicy,
        mut holders: Vec<BrokerId>,
    ) -> bool {
        holders.sort_unstable();
        let among = (ack, holders);
        if let Some(known) = self.beside.get(&among) {
            return *known;
        }
        // One that leaves is chosen where nobody else is there, and the lane's next group would not be
        // any better.
        let chosen = primary.choose(1, 1, (&among.1, &[]), ack).await;
        let more = chosen.iter().any(|h| !primary.is_leaving(h.broker));
        self.beside.insert(among, more);
        more
    }
}

impl Lane {
    /// Ends the lane's open groups that have too few copies or one at a broker that leaves, where others
    /// can be had now. Returns them: each closes in a moment. The lane's next append opens a group with all
    /// of its copies; those that ended get their other copies as any closed group does.
    pub(crate) async fn renew(&self, more: &mut MoreReplicas) -> Vec<Arc<ReplicaSet>> {
        let mut ended = Vec::new();
        for set in self.ill_placed() {
            let holders = set.holders().iter().map(|holder| holder.broker).collect();
            if !more.beside(&self.primary, set.ack(), holders).await {
                continue;
            }
            tracing::info!(group = %set.id(), "another broker can take a replica; the group ends and the lane goes on in one whose replicas are where they should be");
            self.drop_ill_ahead();
            set.freeze();
            ended.push(set);
        }
        if let Some((ack, holders)) = self.ahead_at_one_that_leaves()
            && more.beside(&self.primary, ack, holders).await
        {
            self.drop_ill_ahead();
            self.delete_stale().await;
        }
        ended
    }
}
