//! A group's batches of transactions, each proven by its checksum, and over what is damaged.

use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::Ordinal;

use crate::group::Group;
use crate::place::Place;
use crate::read::{ReadError, ReadSpec};

/// Bytes that are read at once.
const AT_ONCE: usize = 1 << 20;

/// What is damaged of a group.
#[derive(Debug)]
pub struct WalkDamage {
    /// The first place.
    pub first: ReadError,
    /// The ordinal that was expected at each place.
    pub ordinals: Vec<Ordinal>,
}

impl Group {
    /// Shows `visit` the batches of transactions, markers among them, in order, with their bytes. Returns what is damaged,
    /// if anything is: what that may hide was not shown, what is whole behind it was. Waits for the disk.
    ///
    /// # Errors
    /// As [`Self::read`], where nothing of the group can be read.
    pub fn for_each_transactional(
        &self,
        mut visit: impl FnMut(&BatchHeader, &[u8]),
    ) -> Result<Option<WalkDamage>, ReadError> {
        let end = self.loaded_window(false)?.end;
        let mut at = self.start();
        let mut damage: Option<WalkDamage> = None;
        while at.ordinal < end.ordinal {
            match self.walk_whole(at, end, &mut visit) {
                Ok(next) => at = next,
                Err(error) if error.is_of_a_place() => {
                    let damage = damage.get_or_insert_with(|| WalkDamage {
                        first: error,
                        ordinals: Vec::new(),
                    });
                    damage.ordinals.push(at.ordinal);
                    at = self.whole_behind(at, end);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(damage)
    }

    /// The ordinal behind the batch that holds `ordinal`, though that may be damaged: of the next batch that proves itself, as
    /// far as the header or the index lead. What lies between is read by nobody, since nothing leads there. None if there is no
    /// such batch in the group. Waits for the disk.
    pub fn behind(&self, ordinal: Ordinal) -> Option<Ordinal> {
        let end = self.loaded_window(false).ok()?.end;
        let indexed = self.indexed();
        let mut at = indexed
            .iter()
            .rfind(|place| place.ordinal <= ordinal)
            .copied();
        // As readers find it: to the batch, or to one before it that leads no further.
        let mut led = None;
        while let Ok(Some((_, _, next))) = self.step(at.unwrap_or(self.start()), end, false) {
            if next.ordinal > ordinal {
                led = Some(next);
                break;
            }
            at = Some(next);
        }
        let indexed = indexed.into_iter().filter(|place| place.ordinal > ordinal);
        let mut places = led.into_iter().chain(indexed);
        let next = places.find(|place| self.is_whole_at(*place, end))?;
        Some(next.ordinal)
    }

    /// The places in the index.
    fn indexed(&self) -> Vec<Place> {
        let Ok(window) = self.loaded_window(false) else {
            return Vec::new();
        };
        let entries = window.index.entries().iter();
        let places = entries.map(|entry| Place {
            address: entry.address,
            ordinal: entry.ordinal,
        });
        places.collect()
    }

    /// Whether a batch of the group stands there and is whole.
    fn is_whole_at(&self, place: Place, end: Place) -> bool {
        place.ordinal < end.ordinal && self.walk_whole(place, end, &mut |_, _| ()).is_ok()
    }

    /// Shows the batches of transactions of a stretch from `at` on; where it ends.
    fn walk_whole(
        &self,
        at: Place,
        end: Place,
        visit: &mut impl FnMut(&BatchHeader, &[u8]),
    ) -> Result<Place, ReadError> {
        let read = |most| {
            self.read(ReadSpec {
                from: at.address,
                limit: end.address,
                end_ordinal: Ordinal::MAX,
                max_bytes: most,
                cached_only: false,
            })
        };
        let out = match read(AT_ONCE) {
            // A bad sector may lie behind the first batch.
            Err(error) if error.is_of_a_place() => read(0)?,
            out => out?,
        };
        if out.batches == 0 || out.first_ordinal != at.ordinal {
            let reason = match out.batches {
                0 => "the group ends here, before its last record".to_owned(),
                _ => format!("the batch of ordinal {} stands there", out.first_ordinal),
            };
            return Err(self.damaged(at.address, at.ordinal, reason));
        }
        if out.transactional {
            let bytes = match &out.bufs[..] {
                [one] => one.clone(),
                several => several.concat().into(),
            };
            let mut rest = &bytes[..];
            while let Ok(header) = BatchHeader::peek(rest)
                && let Some((batch, behind)) = rest.split_at_checked(header.total_bytes)
            {
                if header.is_transactional() {
                    visit(&header, batch);
                }
                rest = behind;
            }
        }
        Ok(out.next)
    }

    /// The first place behind a damaged batch at `at` where a whole one of the group stands, as far as its header or the
    /// index lead; else the end.
    fn whole_behind(&self, at: Place, end: Place) -> Place {
        let led = self.header_at(at.address, false).ok().flatten();
        let led = led.map(|(header, address)| Place {
            address: address + header.total_bytes as u64,
            ordinal: header.next_ordinal(),
        });
        let indexed = self.indexed();
        let mut places = led.into_iter().chain(indexed);
        let is_behind = |place: &Place| place.address > at.address && place.ordinal > at.ordinal;
        let found = places.find(|place| is_behind(place) && self.is_whole_at(*place, end));
        found.unwrap_or(end)
    }
}
