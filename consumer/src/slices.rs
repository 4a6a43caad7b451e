//! What of a lane is a lease's where the order of keys is kept.

use kera_protocol::batch::{self, BatchError, BatchHeader};
use kera_protocol::ids::Ordinal;
use kera_protocol::slices::{SLICES, SliceSet, slice_of};

/// Slices of a lane, and from where on each is the lease's.
#[derive(Debug)]
pub(crate) struct LeasedSlices {
    set: SliceSet,
    /// `None`: all from the lease's start on.
    starts: Option<Box<[Ordinal; SLICES as usize]>>,
}

impl LeasedSlices {
    /// The slices of a lease that begins at `start`, each `above` it, from the lowest slice up.
    pub(crate) fn new(set: SliceSet, start: Ordinal, above: &[u64]) -> Self {
        let starts = (!above.is_empty()).then(|| {
            let mut starts = Box::new([start; SLICES as usize]);
            for (slice, above) in set.iter().zip(above) {
                starts[slice as usize] = start.saturating_add(*above);
            }
            starts
        });
        Self { set, starts }
    }

    pub(crate) fn takes(&self, key: Option<&[u8]>, ordinal: Ordinal) -> bool {
        let slice = slice_of(key, ordinal);
        let starts = self.starts.as_deref();
        self.set.contains(slice) && starts.is_none_or(|starts| ordinal >= starts[slice as usize])
    }

    /// How many records of a batch between two ordinals are the lease's.
    ///
    /// # Errors
    /// Of the first record that does not decode.
    pub(crate) fn count(
        &self,
        header: &BatchHeader,
        body: &[u8],
        first: Ordinal,
        next: Ordinal,
    ) -> Result<usize, BatchError> {
        let mut count = 0;
        for record in batch::Records::new(header, body) {
            let record = record?;
            let ordinal = header.base_ordinal + u64::from(record.ordinal_delta);
            let within = (first..next).contains(&ordinal);
            count += usize::from(within && self.takes(record.key, ordinal));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_the_lease_s_from_its_own_start_on() {
        let all = LeasedSlices::new(SliceSet::from_bits(0b110), 100, &[]);
        assert!(all.takes(None, 129) && all.takes(None, 130) && !all.takes(None, 128));
        let some = LeasedSlices::new(SliceSet::from_bits(0b110), 100, &[0, 64]);
        assert!(some.takes(None, 129) && !some.takes(None, 130));
        assert!(some.takes(None, 194) && !some.takes(None, 195));
    }
}
