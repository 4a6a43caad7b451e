//! Records that a group cannot have, because no replica has them whole.

use std::time::Instant;

use kera_broker::data::directory::Directory;
use kera_broker::shares::{Attached, SharePlace};
use kera_log_segments::read::ReadError;
use kera_protocol::ids::{GroupId, Ordinal};
use kera_streamlet::{LaneReadError, Located};

use crate::context::Ctx;

/// What a read that failed means to a group. Its members have no position of their own: nobody else can move past it.
enum Lost {
    /// An operator has accepted the loss: the group goes on there.
    GivenUp(Ordinal),
    /// A replica may come back. The partition goes on there, if that is known.
    Stops(Option<Ordinal>),
}

/// Has a group that cannot read on at `from` pass over what was given up there. If nothing was, that is logged, and what an
/// operator can do is returned, for people.
///
/// # Errors
/// That text.
pub(super) async fn pass_over(
    ctx: &Ctx,
    attached: &Attached,
    from: Ordinal,
    error: &LaneReadError,
) -> Result<(), String> {
    let LaneReadError::Group(read) = error else {
        return Err(String::new());
    };
    if !read.is_lasting() {
        return Err(String::new());
    }
    let (place, directory) = (attached.place(), ctx.shared.data.directory.clone());
    let look = tokio::task::spawn_blocking(move || look_behind(&*directory, &place, from));
    // A thread that fell tells nothing; the next look asks again.
    let lost = look.await.unwrap_or(Lost::Stops(None));
    match lost {
        Lost::GivenUp(next) if next > from => {
            attached.give_up(from, next - 1);
            Ok(())
        }
        Lost::GivenUp(_) => Err(String::new()),
        Lost::Stops(next) => Err(told(ctx, attached, read, next)),
    }
}

fn look_behind(directory: &dyn Directory, place: &SharePlace, from: Ordinal) -> Lost {
    let (streamlet, lane) = (&place.streamlet, place.lane);
    let given_up = |group: GroupId, at| directory.given_up(streamlet.key().group(group), at);
    let at = Located {
        ordinal: streamlet.skip_gap(lane, from),
        at: None,
    };
    let groups = streamlet.closed_from(lane, at, 1);
    let Some(found) = groups.first() else {
        return Lost::Stops(None);
    };
    let behind = streamlet.behind_batch(lane, found.group, at.ordinal);
    if let Some(end) = given_up(found.group, at.ordinal) {
        // One stretch may stand for several with whole batches between them.
        return Lost::GivenUp(behind.map_or(end, |next| next.min(end)));
    }
    match streamlet.lost_end(lane, at.ordinal) {
        Ok(Some(lost)) => {
            let mut places = lost.places.iter();
            match places.all(|(group, place)| given_up(*group, *place).is_some()) {
                true => Lost::GivenUp(lost.next),
                false => Lost::Stops(Some(lost.next)),
            }
        }
        Ok(None) | Err(_) => Lost::Stops(Some(behind.unwrap_or(found.end_ordinal))),
    }
}

fn told(ctx: &Ctx, attached: &Attached, error: &ReadError, next: Option<Ordinal>) -> String {
    let place = attached.place();
    let stream = ctx.shared.data.catalog.get(place.stream);
    let stream = stream.map(|stream| stream.name()).unwrap_or_default();
    let hint = match (place.streamlet.has_copies(), next) {
        (true, _) => format!(
            "; share groups wait here for a replica that has it whole, or until `kera stream recover {stream} --accept-loss` gives it up"
        ),
        (false, Some(next)) => format!(
            "; share groups wait here: to go on without it, stop the members and set the group's offset to {next}, which is behind it"
        ),
        (false, None) => String::new(),
    };
    // Members come back at once.
    if let Some(others) = ctx.shared.failed_reads.lock().due(Instant::now()) {
        tracing::error!(%stream, partition = place.partition, %error, others, "a share group cannot read on{hint}");
    }
    hint
}
