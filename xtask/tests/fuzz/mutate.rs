//! Checks over the inputs of a folder and over small changes to them, the same in every run: what a fuzzer does, in little.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::Path;

/// Mutations of each input. The same ones on every run.
const MUTATIONS: u64 = 2_000;

/// Runs `check` over every input in `folder`, as it is and mutated.
#[allow(dead_code, reason = "whose checks take long has fewer of them")]
pub(crate) fn replay(folder: &Path, check: fn(&[u8])) {
    replay_some(folder, MUTATIONS, check);
}

/// The same with so many mutations of each input.
pub(crate) fn replay_some(folder: &Path, mutations: u64, check: impl Fn(&[u8])) {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", folder.display()))
        .map(|entry| entry.expect("the corpus can be read").path())
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{} holds no inputs", folder.display());
    for name in names {
        let input = fs::read(&name).expect("an input can be read");
        for round in 0..=mutations {
            let data = mutated(&input, round);
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| check(&data)));
            assert!(
                outcome.is_ok(),
                "{} in mutation {round}: see above",
                name.display()
            );
        }
    }
}

/// A small random number generator (splitmix64); good enough to pick places and bytes.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit.max(1) as u64) as usize
    }
}

/// `input` as it is in round 0, changed in one to four places in every other round.
fn mutated(input: &[u8], round: u64) -> Vec<u8> {
    let mut data = input.to_vec();
    if round == 0 {
        return data;
    }
    let mut dice = Dice(round);
    for _ in 0..=dice.below(4) {
        if data.is_empty() {
            break;
        }
        let at = dice.below(data.len());
        match dice.below(7) {
            0 => data[at] ^= 1 << dice.below(8),
            1 => data[at] = dice.roll() as u8,
            2 => data.truncate(at),
            // Numbers at which arithmetic goes wrong.
            3 => {
                let edge = [0u8, 0x7f, 0x80, 0xff][dice.below(4)];
                let end = (at + 1 + dice.below(8)).min(data.len());
                data[at..end].fill(edge);
            }
            4 => {
                let end = (at + dice.below(64)).min(data.len());
                let piece = data[at..end].to_vec();
                let to = dice.below(data.len());
                data.splice(to..to, piece);
            }
            5 => {
                let end = (at + dice.below(64)).min(data.len());
                data.drain(at..end);
            }
            _ => {
                let end = (at + dice.below(512)).min(data.len());
                data[at..end].fill(0);
            }
        }
    }
    data
}
