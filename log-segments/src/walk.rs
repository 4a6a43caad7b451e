//! A group's batches of transactions, each proven by its checksum, and over what is damaged.

use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::Ordinal;

use crate::group::Group;
use crate::place::Place;
use crate::read::{ReadError, ReadSpec};
use crate::steps::Steps;

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
                    at = self.whole_from(self.behind_damaged(at, end), end);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(damage)
    }

    /// The ordinal behind the batch that holds `ordinal`, though that may be damaged: of the next batch that proves itself, as
    /// far as anything leads there. What lies between is read by nobody, since nothing does. None if there is
    /// no such batch in the group. Waits for the disk.
    pub fn behind(&self, ordinal: Ordinal) -> Option<Ordinal> {
        let end = self.loaded_window(false).ok()?.end;
        let mut steps = Steps::new(self, end, false);
        // As readers find it.
        let mut at = self.indexed_before(ordinal).ok()?;
        while at.ordinal <= ordinal && at.ordinal < end.ordinal {
            at = steps.behind(at).ok()?;
        }
        let next = self.whole_from(at, end);
        (next.ordinal < end.ordinal).then_some(next.ordinal)
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

    /// The first place from `at` on where a whole batch of the group stands, as far as anything leads there; else the end.
    fn whole_from(&self, mut at: Place, end: Place) -> Place {
        while at.ordinal < end.ordinal && !self.is_whole_at(at, end) {
            at = self.behind_damaged(at, end);
        }
        at
    }
}
