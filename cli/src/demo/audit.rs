//! Reads the whole lane once more and holds it against what was sent.

use std::time::Duration;

use kera_rpc::Client;

use super::check::{Audit, Verdict};
use super::data::Flight;
use crate::failure::Failure;
use crate::parse::Start;
use crate::reader::{LaneReader, find};

/// The broker has just answered; it is not waited for long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads everything that `stream` holds. `sent` is what each producer had acknowledged.
pub(super) async fn audit(
    bootstrap: &str,
    stream: &str,
    sent: Vec<u64>,
) -> Result<Verdict, Failure> {
    let client = Client::connect_to(bootstrap)?;
    let meta = client.stream(stream).await?;
    let places = find(&client, stream, Start::Earliest).await?;
    let mut audit = Audit::new(sent);
    for place in places {
        let mut reader = LaneReader::new(client.clone(), meta.clone(), &place, PATIENCE);
        while reader.ordinal() < place.head_ordinal {
            let before = reader.ordinal();
            let bytes = reader.read(PATIENCE).await?;
            reader.visit(&bytes, |ordinal, record| {
                let flight = record.value.and_then(Flight::parse);
                audit.record(
                    ordinal,
                    flight.map(|flight| (flight.producer, flight.sequence)),
                );
                Ok(true)
            })?;
            if reader.ordinal() == before {
                return Err(Failure::message(format!(
                    "nothing can be read at ordinal {before}, below the durable head {}",
                    place.head_ordinal
                )));
            }
        }
    }
    Ok(audit.finish())
}
