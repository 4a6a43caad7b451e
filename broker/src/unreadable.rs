//! Streamlets without replicas elsewhere whose files cannot be read at a start, as where a sector of an open group's file has
//! gone bad. Each waits by itself and serves nothing, the broker serves all others, and the files are read again and
//! again: an operator may put a copy of what can be read in the place of such a file.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kera_streamlet::Streamlet;

use crate::cluster::restored_groups::tell_holes;
use crate::coordination::CoordinatorKind;
use crate::data::catalog::{Stream, make_missing_dir};
use crate::recover::{pass_over_unknown, recover_again, settle};
use crate::shared::Shared;
use crate::store_calls::blocking;

/// Files are read again after this many times as long as it took to fail: a disk that needs a minute to fail has others
/// to serve.
const PAUSE: u32 = 10;
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Whether what could not be read may be read later. What an operator must decide keeps the broker from starting, and so
/// do permissions: these are seldom those of one file.
pub(crate) fn is_for_later(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::InvalidData | ErrorKind::PermissionDenied | ErrorKind::OutOfMemory
    )
}

/// The message about a streamlet whose files cannot be read, with the `cause`.
pub(crate) fn told(cause: &str) -> String {
    format!(
        "its files cannot be read ({cause}), and there are no other replicas; they are read again and again: check the disk, or put a copy of what can be read in the file's place"
    )
}

/// Whether a coordinator of this broker cannot be read since its streamlet cannot.
pub(crate) fn of_coordinators(shared: &Shared) -> bool {
    let kinds = CoordinatorKind::ALL.into_iter();
    let mut streams = kinds.filter_map(|kind| shared.data.catalog.named(kind.stream()));
    streams.any(|stream| {
        let mut streamlets = stream.streamlets.iter();
        streamlets.any(|one| !one.is_over() && one.unreadable().is_some())
    })
}

/// Begins to read again what could not be read; returns at once.
pub(crate) fn start(shared: &Arc<Shared>) {
    for stream in shared.data.catalog.all() {
        for streamlet in &stream.streamlets {
            if streamlet.unreadable().is_some() {
                tokio::spawn(read_again(shared.clone(), stream.clone(), streamlet));
            }
        }
    }
}

async fn read_again(shared: Arc<Shared>, stream: Arc<Stream>, streamlet: Arc<Streamlet>) {
    let (name, number) = (stream.name(), streamlet.id().0);
    let mut stopping = shared.stopping.subscribe();
    let mut pause = SHORTEST_PAUSE;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
        if streamlet.is_over() {
            return;
        }
        let begun = Instant::now();
        let (to_read, of_stream, shared_now) = (streamlet.clone(), stream.clone(), shared.clone());
        match blocking(move || attempt(&shared_now, &of_stream, &to_read)).await {
            Ok(()) => {
                tracing::info!(
                    stream = name,
                    streamlet = number,
                    "its files can be read: it is served"
                );
                shared.coordination.owners_changed();
                return;
            }
            Err(cause) => {
                if streamlet.unreadable().as_ref() != Some(&cause) {
                    tracing::error!(stream = name, streamlet = number, "{}", told(&cause));
                    streamlet.set_unreadable(cause);
                }
            }
        }
        pause = (PAUSE * begun.elapsed()).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    }
}

fn attempt(shared: &Shared, stream: &Stream, streamlet: &Arc<Streamlet>) -> Result<(), String> {
    let (id, number) = (streamlet.stream(), streamlet.id());
    let image = shared.metadata.load_streamlet(id, number);
    let image = image.map_err(|error| error.to_string())?;
    let mut recorded = image.streamlets.iter();
    let recorded = recorded.find(|one| one.streamlet == number && one.epoch == streamlet.epoch());
    let recorded = recorded.ok_or("no record names it as this broker's any more")?;
    let recovery = recover_again(&image, recorded, streamlet);
    let recovery = recovery.map_err(|error| error.to_string())?;
    let env = &shared.data.env;
    let settled = settle(&stream.name(), streamlet, recovery, env, &shared.recorder);
    settled.map_err(|error| error.to_string())?;
    let passed = pass_over_unknown(streamlet, recorded, &shared.recorder);
    if let Some((image, recorded)) = passed.map_err(|error| error.to_string())? {
        let holes = tell_holes(&stream.name(), &image);
        env.losses.groups.fetch_add(holes, Ordering::Relaxed);
        let recovery = recover_again(&image, &recorded, streamlet);
        let recovery = recovery.map_err(|error| error.to_string())?;
        let settled = settle(&stream.name(), streamlet, recovery, env, &shared.recorder);
        settled.map_err(|error| error.to_string())?;
    }
    make_missing_dir(streamlet, env).map_err(|error| error.to_string())?;
    streamlet.serve_alone();
    Ok(())
}
