//! The walk over requests against the codec: what the codec's own encoder makes passes, nothing
//! less than the whole does, and what passes the codec decodes.

use bytes::Bytes;
use kera_kafka_shim::wire::probe;
use kera_kafka_shim::wire::walk::{Limits, walk};
use proptest::prelude::*;

#[path = "support/dice.rs"]
mod dice;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/newer.rs"]
mod newer_bodies;

use dice::Dice;

fn passes(api_key: i16, version: i16, body: &[u8]) -> bool {
    walk(api_key, version, body, &Limits::default()).is_ok()
}

/// Every API and version with requests made from `seed`.
fn for_all(seed: u64, mut check: impl FnMut(i16, i16, Vec<u8>)) {
    let mut dice = Dice::new(seed);
    for (api_key, version) in messages::all_versions() {
        let (body, _) = messages::body(api_key, version, &mut dice);
        check(api_key, version, body);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_codec_encodes_passes_and_nothing_less_does(seed: u64) {
        for_all(seed, |api_key, version, body| {
            let verdict = walk(api_key, version, &body, &Limits::default());
            assert_eq!(verdict, Ok(()), "{api_key} version {version}: {body:02x?}");
            for end in 0..body.len() {
                assert!(
                    !passes(api_key, version, &body[..end]),
                    "{api_key} version {version} passes with {end} bytes of {body:02x?}"
                );
            }
            assert_eq!(probe::decode(api_key, version, Bytes::from(body)), Ok(0));
        });
    }

    #[test]
    fn what_passes_the_codec_decodes_as_far(seed: u64) {
        let mut passed = 0_usize;
        for_all(seed, |api_key, version, body| {
            let mut dice = Dice::new(seed);
            for _ in 0..20 {
                let mut bent = body.clone();
                for _ in 0..=dice.below(3) {
                    if bent.is_empty() {
                        break;
                    }
                    let at = dice.below(bent.len());
                    match dice.below(4) {
                        0 => bent[at] ^= 1 << dice.below(8),
                        1 => bent[at] = [0, 1, 0x7f, 0x80, 0xff][dice.below(5)],
                        2 => drop(bent.splice(at..at, dice.bytes())),
                        _ => bent.truncate(at),
                    }
                }
                if passes(api_key, version, &bent) {
                    passed += 1;
                    let decoded = probe::decode(api_key, version, Bytes::from(bent.clone()));
                    assert!(decoded.is_ok(), "{api_key} version {version}: {decoded:?}: {bent:02x?}");
                    let read = probe::is_read_by_hand(api_key, version, &bent);
                    assert!(read, "{api_key} version {version} by hand: {bent:02x?}");
                }
            }
        });
        // Or nothing was shown.
        prop_assert!(passed > 0);
    }
}

#[test]
fn the_table_has_the_codec_s_versions() {
    for (api_key, version) in messages::all_versions() {
        let (body, _) = messages::body(api_key, version, &mut Dice::new(1));
        assert!(passes(api_key, version, &body));
        assert!(!passes(api_key, -1, &body));
    }
}

/// The smallest requests there are with something in each array.
#[test]
fn topics_without_partitions_are_read_by_hand() {
    // Transactional id, acks, timeout; a topic of a name, no partitions and no tags.
    let produce = [0, 0, 1, 0, 0, 0, 1, 2, 1, 1, 0, 0];
    // Replica, wait, least and most bytes, isolation, session and its epoch; the same topic, twice;
    // an empty rack.
    let fetch = [&[0; 25][..], &[2, 1, 1, 0], &[2, 1, 1, 0], &[1, 0]].concat();
    for (api_key, version, body) in [(0, 9, &produce[..]), (1, 12, &fetch)] {
        assert!(passes(api_key, version, body), "{api_key}");
        assert!(probe::is_read_by_hand(api_key, version, body), "{api_key}");
    }
}
