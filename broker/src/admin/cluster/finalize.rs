//! Recording a cluster version: from then on what it brings may be used, and older programs cannot join.

use std::collections::BTreeSet;
use std::sync::Arc;

use kera_controller::{Members, Picture};
use kera_metadata::{BrokerRecord, CLUSTER_VERSION, LiveBroker, Living};
use kera_protocol::error::WireError;
use kera_protocol::v1;

use super::{invalid, with_picture};
use crate::alter_settings::change_settings;
use crate::settings::Scope;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// As brokers record it when they start.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Records the newest cluster version that every living broker can; this broker alone where it shares no store.
/// `without` are brokers that are away and need not be waited for.
///
/// A broker that joins meanwhile with an older program hears of the version and ends.
///
/// # Errors
/// [`kera_protocol::error::ErrorCode::InvalidArgument`] naming the brokers whose programs are too old, or that are away and
/// own or hold something or last ran an earlier one, or what the metadata store answers.
pub async fn finalize(
    shared: &Arc<Shared>,
    without: &[u32],
) -> Result<v1::FinalizeClusterResponse, WireError> {
    let wanted = match &shared.clustered {
        None => CLUSTER_VERSION,
        Some(clustered) => {
            let living = clustered.store.living().borrow().clone();
            let now = shared.settings.cluster_version();
            let wanted = common(&living.values().collect::<Vec<_>>(), now)?;
            if wanted > now {
                let store = clustered.store.clone();
                let recorded = blocking(move || store.brokers().map_err(|e| metadata_error(&e)));
                let recorded = recorded.await?;
                let look = move |picture: &Picture, _: &Members, living: &Living| {
                    away(picture, &recorded, living)
                };
                check_away(&with_picture(shared, look).await?, without)?;
            }
            wanted
        }
    };
    let mut before = 0;
    let record = change_settings(shared, Scope::All, |record| {
        before = shared.settings.version_of(record);
        if before < wanted {
            record.cluster_version = wanted;
        }
        Ok(before < wanted)
    });
    let record = record.await?;
    // Another broker may have finalized it, and the watch not have told yet.
    shared.take_settings(record);
    Ok(v1::FinalizeClusterResponse {
        before,
        version: before.max(wanted),
    })
}

/// Brokers that do not run and own streamlets or hold groups, or last ran another program than this one: one that was
/// drained before its update owns and holds nothing.
fn away(picture: &Picture, recorded: &[BrokerRecord], living: &Living) -> BTreeSet<u32> {
    let streamlets = picture.streamlets().map(|(_, _, streamlet)| streamlet);
    let named = streamlets.flat_map(|streamlet| {
        let copies = streamlet.groups.values().flat_map(|group| &group.copies);
        copies.copied().chain([streamlet.owner()])
    });
    let others = recorded.iter().filter(|broker| broker.version != PROGRAM);
    let others = others.map(|broker| broker.id);
    let all = named.chain(others);
    all.filter(|id| !living.contains_key(id)).collect()
}

/// Refuses while brokers are away whose programs nobody knows: one that comes back with an earlier program serves, and cannot
/// read what the new version brings.
fn check_away(away: &BTreeSet<u32>, without: &[u32]) -> Result<(), WireError> {
    let missing = away.iter().filter(|id| !without.contains(id));
    let missing: Vec<_> = missing.map(u32::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (missing, flag) = (missing.join(", "), missing.join(","));
    Err(invalid(format!(
        "broker {missing} is away, and nobody knows its program: start it with the new one, or say that it will not come back with an earlier one (--without-brokers {flag})"
    )))
}

/// The newest cluster version that all of `living` can, if that is newer than `now` or nobody can more.
fn common(living: &[&LiveBroker], now: u32) -> Result<u32, WireError> {
    let least = living.iter().map(|live| live.cluster_version).min();
    let most = living.iter().map(|live| live.cluster_version).max();
    let (least, most) = (least.unwrap_or(now), most.unwrap_or(now));
    if least > now || most <= now {
        return Ok(least);
    }
    let old = living.iter().filter(|live| live.cluster_version <= now);
    let old: Vec<_> = old
        .map(|live| format!("{} {} ({})", live.role, live.id, live.version))
        .collect();
    Err(invalid(format!(
        "the cluster stays at version {now}: the program of {} knows no newer one; update it, and run this again",
        old.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_metadata::Incarnation;
    use uuid::Uuid;

    fn live(id: u32, cluster_version: u32) -> LiveBroker {
        let incarnation = Incarnation {
            store_id: Uuid::from_u128(id.into()),
            boot_id: Uuid::from_u128(1),
        };
        let mut live = LiveBroker::new(id, incarnation);
        live.cluster_version = cluster_version;
        live.version = "0.1.0".into();
        live
    }

    #[test]
    fn who_is_away_is_waited_for_unless_the_request_names_it() {
        let away = BTreeSet::from([3, 5]);
        let refused = check_away(&away, &[5]).expect_err("3 is away");
        assert!(refused.message.contains("broker 3 is away"), "{refused}");
        let both = check_away(&away, &[]).expect_err("both are");
        assert!(both.message.contains("--without-brokers 3,5"), "{both}");
        assert_eq!(check_away(&away, &[5, 3]), Ok(()));
        assert_eq!(check_away(&BTreeSet::new(), &[]), Ok(()));
    }

    #[test]
    fn a_cluster_is_of_the_newest_version_that_every_broker_can() {
        let of = |versions: &[u32], now| {
            let living: Vec<_> = (1..).zip(versions).map(|(id, v)| live(id, *v)).collect();
            common(&living.iter().collect::<Vec<_>>(), now)
        };
        assert_eq!(of(&[1, 1], 0), Ok(1));
        assert_eq!(of(&[3, 2, 4], 1), Ok(2));
        assert_eq!(of(&[2, 2], 2), Ok(2), "nothing to do");
        let refused = of(&[1, 0, 1], 0).expect_err("broker 2 is too old");
        assert!(refused.message.contains("broker 2 (0.1.0)"), "{refused}");
        assert!(!refused.message.contains("broker 1"), "{refused}");
    }
}
