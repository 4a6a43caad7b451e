//! Administration: what control calls ([`calls`]) and Kafka's clients ask of streams and of the cluster, whichever way
//! they ask.

pub mod calls;
pub mod cluster;
mod elsewhere;
mod growth;
mod pin_list;
mod pins;
mod places;
mod recover;
mod streams;

use std::sync::Arc;

use kera_protocol::error::{ErrorCode, WireError};

use crate::data::catalog::Stream;
use crate::fault_rules::Rule;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

pub(crate) use elsewhere::{ANSWER_WITHIN, describe as describe_elsewhere};
pub(crate) use growth::{cut_for_growth, give_up_growth};
pub(crate) use pin_list::list_pins;
pub(crate) use pins::{Maker, create_pin, delete_pin};
pub(crate) use places::find_what_answers;
pub use places::{compact_stream, find_ordinals, record_hurt_pins, trim_lane, trim_stream};
pub(crate) use places::{is_served, later_of_each};
pub(crate) use recover::not_served_here;
pub use recover::recover_stream;
pub(crate) use streams::drop_stream;
pub use streams::{alter_stream, altered_config, create_stream, delete_stream, new_config};

/// Producer ids taken from the metadata store at once.
const PRODUCER_ID_BLOCK: u64 = 1000;

/// The stream of a name.
///
/// # Errors
/// [`ErrorCode::UnknownStream`].
pub fn named(shared: &Shared, name: &str) -> Result<Arc<Stream>, WireError> {
    shared.data.catalog.named(name).ok_or_else(|| {
        WireError::new(
            ErrorCode::UnknownStream,
            format!("no stream is named \"{name}\"; see `kera stream list`, or create it"),
        )
    })
}

/// Refuses a change of a stream by its name if another one was meant: a request that was long on its way finds one that was
/// made again under the name. Without an id whatever has the name is meant.
///
/// # Errors
/// [`ErrorCode::UnknownStream`].
pub(crate) fn is_meant(stream: &Stream, id: &[u8]) -> Result<(), WireError> {
    if id.is_empty() || id == stream.id().as_bytes() {
        return Ok(());
    }
    let text = format!(
        "the stream that is meant is deleted, and \"{}\" is another one that was made under its name; nothing was changed, ask again if that one is meant",
        stream.name()
    );
    Err(WireError::new(ErrorCode::UnknownStream, text))
}

/// The stream of a name, as [`named`]. A broker of a cluster that does not know it asks the store before it says so:
/// it may have been started just now, be cut off, or hear of changes late.
///
/// # Errors
/// [`ErrorCode::UnknownStream`] if the store has none; what may pass if the broker has not heard of it yet, or cannot ask.
pub async fn named_anywhere(shared: &Shared, name: &str) -> Result<Arc<Stream>, WireError> {
    let unknown = match named(shared, name) {
        Err(unknown)
            if shared.data.directory.is_shared() && !Rule::UnknownStreamGuessed.is_broken() =>
        {
            unknown
        }
        answer => return answer,
    };
    let (store, wanted) = (shared.metadata.clone(), name.to_owned());
    let recorded = blocking(move || store.stream_named(&wanted).map_err(|e| metadata_error(&e)));
    match recorded.await? {
        None => Err(unknown),
        Some(_) => {
            let text = format!("this broker has not heard of stream \"{name}\" yet; ask again");
            Err(WireError::new(ErrorCode::NotOwner, text))
        }
    }
}

/// Checks that users may change a stream.
///
/// # Errors
/// [`ErrorCode::InvalidName`] for the broker's own.
pub fn changeable(stream: &Stream) -> Result<(), WireError> {
    let record = stream.record.load();
    if record.internal {
        let text = format!(
            "stream \"{}\" is the broker's own and cannot be changed",
            record.name
        );
        return Err(WireError::new(ErrorCode::InvalidName, text));
    }
    Ok(())
}

/// A producer id that nobody was given and nobody will be, native or Kafka's.
///
/// # Errors
/// What the metadata store answers.
pub async fn new_producer_id(shared: &Arc<Shared>) -> Result<u64, WireError> {
    let shared = shared.clone();
    blocking(move || {
        let mut ids = shared.producer_ids.lock();
        if ids.is_empty() {
            *ids = shared
                .metadata
                .allocate_producer_ids(PRODUCER_ID_BLOCK)
                .map_err(|e| metadata_error(&e))?;
        }
        ids.next()
            .ok_or_else(|| WireError::new(ErrorCode::Internal, "no producer ids are left"))
    })
    .await
}
