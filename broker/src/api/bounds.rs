//! How much of a list an answer has room for.

use serde::Serialize;

/// Bytes of the rows of a list.
pub(super) const MOST_OF_LIST: usize = 900 << 10;
/// Most bytes of the rows of lanes or partitions on the page of one stream or group.
pub(super) const MOST_OF_LANES: usize = 650 << 10;
/// Most bytes of the rows of members or consumer groups on it.
pub(super) const MOST_OF_MEMBERS: usize = 250 << 10;

/// Leaves out rows from where they have more bytes: names of control characters have six of them for each.
pub(super) fn fit<T: Serialize>(rows: &mut Vec<T>, most: usize) {
    let mut bytes = 0;
    let fits = |row: &&T| {
        bytes += serde_json::to_string(row).map_or(most, |text| text.len() + 1);
        bytes <= most
    };
    let count = rows.iter().take_while(fits).count();
    rows.truncate(count);
}
