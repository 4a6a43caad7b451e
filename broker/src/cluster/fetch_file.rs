//! Fetching this broker's own file of a closed group from another replica, byte for byte.

use kera_metadata::GroupRecord;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::primary::Primary;
use kera_replication::transport::{Reply, Request};
use kera_streamlet::Streamlet;

use super::own_file::OwnFile;

/// Bytes fetched at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Fetches a closed group whose own file is damaged or gone, and puts it into its place at once, so
/// that nobody reads half of it.
///
/// # Errors
/// Says, for people, why the group could be had from nobody.
pub(super) async fn replace(
    primary: &Primary,
    streamlet: &Streamlet,
    record: &GroupRecord,
) -> Result<(), String> {
    let file = OwnFile::new(streamlet, record);
    fetch(primary, &file, record).await.map(|_| ())
}

/// Fetches a group from the first holder whose copy is whole, and only then puts it in the place of what is there; its
/// greatest timestamp.
pub(super) async fn fetch(
    primary: &Primary,
    file: &OwnFile,
    record: &GroupRecord,
) -> Result<i64, String> {
    let fetched = fetch_from_any(primary, file, record).await;
    if fetched.is_err() {
        // The next fetch begins anew, and the next start removes the unfinished file.
        let _ = file.give_up().await;
    }
    fetched
}

async fn fetch_from_any(
    primary: &Primary,
    file: &OwnFile,
    record: &GroupRecord,
) -> Result<i64, String> {
    let me = primary.me();
    let (copy, path) = (CopyId::of(record), file.spec.path.display());
    let mut reasons = Vec::new();
    let mut holders: Vec<_> = record.copies.iter().map(|c| c.broker).collect();
    // One in this broker's own store needs no network; who is not alive may not answer for long.
    let alive = primary.peers();
    holders.sort_by_key(|holder| (*holder != me, !alive.contains(holder)));
    for holder in holders {
        if holder == me && !is_kept_here(primary, &copy).await {
            continue;
        }
        match fetch_from(primary, file, record, holder).await {
            Ok(Some(max_timestamp_ms)) => {
                tracing::info!(%copy, %holder, file = %path, "this broker's own file was fetched from another replica");
                return Ok(max_timestamp_ms);
            }
            Ok(None) => reasons.push(format!("the replica on {holder} is not whole")),
            Err(reason) => reasons.push(format!("{holder}: {reason}")),
        }
    }
    Err(format!(
        "{path} is missing or damaged, and group {copy} cannot be fetched: {}",
        reasons.join("; ")
    ))
}

/// Whether this broker keeps the copy in its store, apart from its own files.
async fn is_kept_here(primary: &Primary, copy: &CopyId) -> bool {
    let list = Request::List {
        streamlet: Some(copy.streamlet),
    };
    match primary.ask(primary.me(), list).await {
        Ok(Reply::Copies(copies)) => copies.iter().any(|kept| kept.copy == *copy),
        _ => false,
    }
}

async fn fetch_from(
    primary: &Primary,
    file: &OwnFile,
    record: &GroupRecord,
    holder: BrokerId,
) -> Result<Option<i64>, String> {
    let (copy, size) = (CopyId::of(record), u64::from(file.spec.segment_size));
    let mut address = 0;
    while address < record.length {
        let end_of_segment = (address / size + 1) * size;
        let to = record.length.min(address + PIECE_BYTES).min(end_of_segment);
        let request = Request::Read {
            copy,
            address,
            len: (to - address) as u32,
        };
        let reply = primary.ask(holder, request).await;
        match reply.map_err(|error| error.to_string())? {
            Reply::Bytes(bytes) if bytes.len() as u64 == to - address => {
                file.write(address, bytes).await?;
            }
            other => return Err(format!("it answered a read with {other:?}")),
        }
        address = to;
    }
    file.finish().await
}
