//! One look at everything: answers of `/api/v1`, of which docs/api.md has every field.

use serde_json::Value;

use super::ask::Place;
use crate::output::{count, plain, rounded_bytes};

/// Rows that are asked for.
const ROWS: usize = 200;

/// What the API told.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) overview: Value,
    pub(super) streams: Value,
    pub(super) groups: Value,
    pub(super) brokers: Value,
}

impl Look {
    /// Asks for all of it.
    ///
    /// # Errors
    /// As [`Place::get`].
    pub(super) async fn take(place: &Place) -> Result<Self, String> {
        let streams = format!("streams?sort=rate&limit={ROWS}");
        let groups = format!("groups?sort=lag&limit={ROWS}");
        let (overview, streams, groups, brokers) = tokio::try_join!(
            place.get("overview"),
            place.get(&streams),
            place.get(&groups),
            place.get("brokers?limit=200"),
        )?;
        Ok(Self {
            overview,
            streams,
            groups,
            brokers,
        })
    }

    /// Whether rates are known already.
    pub(super) fn has_rates(&self) -> bool {
        self.overview["streams"] == 0 || self.overview["records_in"].is_number()
    }

    /// Whether all is well, what to do if not, and sums: lines for people.
    pub(super) fn summary(&self) -> Vec<String> {
        let health = &self.overview["health"];
        let mut lines = vec![text(&health["sentence"])];
        let advice = text(&health["advice"]);
        if !advice.is_empty() {
            lines.push(format!("What to do: {advice}"));
        }
        let overview = &self.overview;
        lines.push(format!(
            "{} in, {} in, {} out; {} stored; {} of {} brokers answer",
            rate(&overview["records_in"], "records"),
            byte_rate(&overview["bytes_in"]),
            byte_rate(&overview["bytes_out"]),
            rounded_bytes(number(&overview["bytes"])),
            number(&overview["brokers_answering"]),
            number(&overview["brokers"]),
        ));
        lines
    }

    /// `ok`, `attention` or `trouble`.
    pub(super) fn health(&self) -> &str {
        self.overview["health"]["state"]
            .as_str()
            .unwrap_or("trouble")
    }
}

/// A text, as a terminal may show it.
pub(super) fn text(value: &Value) -> String {
    plain(value.as_str().unwrap_or_default())
}

/// A count; 0 where there is none.
pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// So many a second; `-` while it is not known.
pub(super) fn rate(value: &Value, of: &str) -> String {
    let of = if of.is_empty() {
        String::new()
    } else {
        format!(" {of}")
    };
    value.as_f64().map_or_else(
        || "-".to_owned(),
        |rate| format!("{}{of}/s", count(rate.round() as u64)),
    )
}

/// So many bytes a second; `-` while it is not known.
pub(super) fn byte_rate(value: &Value) -> String {
    value.as_f64().map_or_else(
        || "-".to_owned(),
        |rate| format!("{}/s", rounded_bytes(rate as u64)),
    )
}
