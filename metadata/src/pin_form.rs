//! The stored form of pins.

use kera_protocol::ids::{LaneId, StreamletId};
use kera_records::{LossCause, PinKey, PinLoss, PinPolicy, PinRecord};

use crate::encode::known;
use crate::messages::{PinLossMessage, PinMessage};

pub(crate) fn message(r: &PinRecord) -> PinMessage {
    PinMessage {
        job: r.job.clone(),
        owner: r.owner.clone(),
        created_ms: r.created_ms,
        positions: r.positions.clone(),
        max_age_ms: r.max_age_ms,
        max_bytes: r.max_bytes,
        policy: r.policy.number().into(),
        lost: r.lost.as_ref().map(|lost| PinLossMessage {
            streamlet: lost.streamlet.0,
            lane: lost.lane.0,
            ordinal: lost.ordinal,
            cause: lost.cause.number().into(),
            at_ms: lost.at_ms,
        }),
    }
}

pub(crate) fn record(key: &PinKey, m: PinMessage, revision: u64) -> Result<PinRecord, String> {
    let lost = m.lost.map(|lost| {
        Ok::<_, String>(PinLoss {
            streamlet: StreamletId(lost.streamlet),
            lane: LaneId(lost.lane),
            ordinal: lost.ordinal,
            cause: known("cause", lost.cause, LossCause::of_number)?,
            at_ms: lost.at_ms,
        })
    });
    Ok(PinRecord {
        stream: key.stream,
        name: key.name.clone(),
        job: m.job,
        owner: m.owner,
        created_ms: m.created_ms,
        positions: m.positions,
        max_age_ms: m.max_age_ms,
        max_bytes: m.max_bytes,
        policy: known("policy", m.policy, PinPolicy::of_number)?,
        lost: lost.transpose()?,
        revision,
    })
}
