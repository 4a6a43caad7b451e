//! What the group gave up, as it lies in the stream of its dead letters in the end.

use std::collections::BTreeSet;
use std::sync::Arc;

use kera_consumer::ConsumeError;
use tokio::time::timeout;

use super::Shared;
use crate::load::PATIENCE;
use crate::plan::DEAD_LETTERS;
use crate::{anew, inside};

/// The headers that tell what a letter is about.
const PARTITION: &str = "__dlq.errors.partition";
const OFFSET: &str = "__dlq.errors.offset";

/// Reads all dead letters, and has them judged. The group is through with everything.
pub async fn read(shared: Arc<Shared>) {
    let load = &shared.load;
    match timeout(PATIENCE, all(&shared)).await {
        Ok(Ok(letters)) => {
            let all = inside::letters_unwritten() == 0;
            shared.judge.judge_letters(&letters, all);
        }
        Ok(Err(error)) => load.complain(format!("dead letters cannot be read: {error}")),
        Err(_) => load.complain("dead letters are not read to their end in time".to_owned()),
    }
}

async fn all(shared: &Shared) -> Result<BTreeSet<(u32, u64)>, ConsumeError> {
    let reader = anew::reader(&shared.load, DEAD_LETTERS, None).follow(false);
    let (mut reader, mut letters) = (reader.open().await?, BTreeSet::new());
    while let Some(batch) = reader.next_batch().await? {
        for record in batch.records() {
            let told = record.ok().and_then(|record| {
                let number = |name: &str| {
                    let mut headers = record.headers();
                    let value = headers.find(|header| header.key == name)?.value?;
                    std::str::from_utf8(value).ok()?.parse::<u64>().ok()
                };
                Some((number(PARTITION)? as u32, number(OFFSET)?))
            });
            match told {
                Some(place) => drop(letters.insert(place)),
                None => shared
                    .load
                    .complain("a dead letter does not tell what it is about".to_owned()),
            }
        }
    }
    Ok(letters)
}
