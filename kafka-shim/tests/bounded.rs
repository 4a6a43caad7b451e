//! What passes the walk takes the codec no more memory than [`Limits`] says, counted by an
//! allocator. A test binary of its own: the allocator counts for all that runs in it.

use bytes::Bytes;
use kera_kafka_shim::wire::probe;
use kera_kafka_shim::wire::reader::MAX_ELEMENTS;
use kera_kafka_shim::wire::walk::{Limits, walk};

#[path = "support/dice.rs"]
mod dice;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/newer.rs"]
mod newer_bodies;

use dice::Dice;

/// The bytes that the codec held at most while it decoded `body`, if the walk lets it pass.
fn held(api_key: i16, version: i16, body: &[u8], limits: &Limits) -> Option<usize> {
    walk(api_key, version, body, limits).ok()?;
    let body = Bytes::copy_from_slice(body);
    let mut decoded = Ok(0);
    let counted = allocation_counter::measure(|| decoded = probe::decode(api_key, version, body));
    assert!(decoded.is_ok(), "{api_key} version {version}: {decoded:?}");
    Some(counted.bytes_max as usize)
}

#[track_caller]
fn check(api_key: i16, version: i16, body: &[u8], limits: &Limits) -> bool {
    let Some(held) = held(api_key, version, body, limits) else {
        return false;
    };
    let by_limits = limits.codec_bytes();
    let by_size = Limits::BYTES_PER_REQUEST + Limits::MULTIPLE * body.len();
    assert!(
        held <= by_limits.min(by_size),
        "api key {api_key} version {version}: {held} bytes for {} bytes; at most {by_limits} and {by_size} are promised",
        body.len()
    );
    true
}

/// `count` as flexible versions write the number of elements.
fn compact(count: u32) -> Vec<u8> {
    let mut left = count + 1;
    let mut out = Vec::new();
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
    out
}

#[test]
fn messages_and_what_a_bad_wire_makes_of_them() {
    let limits = Limits::default();
    let mut passed = 0;
    for seed in 0..30 {
        let mut dice = Dice::new(seed);
        for (api_key, version) in messages::all_versions() {
            let (body, _) = messages::body(api_key, version, &mut dice);
            assert!(check(api_key, version, &body, &limits));
            for _ in 0..10 {
                let mut bent = body.clone();
                if bent.is_empty() {
                    continue;
                }
                let at = dice.below(bent.len());
                bent[at] = dice.roll() as u8;
                passed += usize::from(check(api_key, version, &bent, &limits));
            }
        }
    }
    assert!(passed > 100, "only {passed} bent requests passed");
}

/// The structures that are largest in memory for the fewest bytes on the wire, as many as are let
/// through, and one more.
#[test]
fn the_worst_that_passes_and_one_more() {
    let limits = Limits {
        elements: 10_000,
        unknown_tags: 1_000,
    };
    // Groups of OffsetFetch v9: empty name, null member, epoch, null topics, no tags.
    let group = [1, 0, 0, 0, 0, 0, 0, 0];
    // Members of LeaveGroup v5: empty, null, null, no tags.
    let member = [1, 0, 0, 0];
    // Resources of IncrementalAlterConfigs v1: type, empty name, no configs, no tags.
    let resource = [2, 1, 1, 0];
    // Topics of CreateTopics v7.
    let topic = [1, 0, 0, 0, 1, 0, 1, 1, 1, 0];
    // API, version, what comes before the array, one element, what comes behind.
    type Kind<'a> = (i16, i16, &'a [u8], &'a [u8], &'a [u8]);
    let kinds: [Kind<'_>; 6] = [
        (9, 9, &[], &group, &[0, 0]),
        (13, 5, &[1], &member, &[0]),
        (44, 1, &[], &resource, &[0, 0]),
        (19, 7, &[], &topic, &[0, 0, 0, 0, 0, 0]),
        (10, 4, &[0], &[1], &[0]),
        (75, 0, &[], &[1, 0], &[0, 0, 0, 1, 0xff, 0]),
    ];
    for (api_key, version, before, element, after) in kinds {
        let body = |count: u32| {
            let elements = element.repeat(count as usize);
            [before, &compact(count), &elements, after].concat()
        };
        assert!(check(api_key, version, &body(10_000), &limits), "{api_key}");
        assert!(
            !check(api_key, version, &body(10_001), &limits),
            "{api_key}"
        );
    }
}

/// One unknown tagged field in each of many structures costs the codec a node of a map each.
#[test]
fn unknown_tagged_fields_are_bounded() {
    let limits = Limits {
        elements: 10_000,
        unknown_tags: 1_000,
    };
    let body = |count: u32| {
        let topics = [1, 1, 9, 0].repeat(count as usize);
        [&compact(count)[..], &topics, &[0, 0, 0, 1, 0xff, 0]].concat()
    };
    assert!(check(75, 0, &body(1_000), &limits));
    assert!(!check(75, 0, &body(1_001), &limits));
    // All in one structure.
    let tags = |count: u32| {
        let mut body = compact(count - 1);
        for tag in 0..count {
            body.extend(compact(tag + 1_000));
            body.push(0);
        }
        [&[0, 0][..], &body].concat()
    };
    assert!(check(
        60,
        0,
        &[&[0][..], &tags(1_000)[2..]].concat(),
        &limits
    ));
    assert!(!check(
        60,
        0,
        &[&[0][..], &tags(1_001)[2..]].concat(),
        &limits
    ));
}

/// Produce and Fetch are not read by the codec; the readers of their own keep to the same bound.
#[test]
fn what_is_read_by_hand_is_bounded() {
    // Topics with an empty name and no partitions behind transactional id, acks and timeout, and
    // the same behind what a Fetch begins with.
    let produce: &[u8] = &[0xff, 0xff, 0, 1, 0, 0, 0, 1];
    let fetch: &[u8] = &[0; 4 + 4 + 4 + 4 + 1];
    for (api_key, version, before) in [(0, 3, produce), (1, 4, fetch)] {
        let body = |count: usize| {
            let length = (count as i32).to_be_bytes();
            [before, &length, &[0; 6].repeat(count)].concat()
        };
        let measured = |body: &[u8]| {
            let mut read = false;
            let counted = allocation_counter::measure(|| {
                read = probe::is_read_by_hand(api_key, version, body);
            });
            (read, counted.bytes_max as usize)
        };
        let largest = body(MAX_ELEMENTS);
        let (read, held) = measured(&largest);
        assert!(read);
        let promised = Limits::BYTES_PER_REQUEST + Limits::BYTES_PER_ELEMENT * MAX_ELEMENTS;
        assert!(
            held <= promised,
            "API {api_key}: {held} bytes, {promised} are promised"
        );
        let (read, held) = measured(&body(MAX_ELEMENTS + 1));
        assert!(
            !read && held < Limits::BYTES_PER_REQUEST,
            "API {api_key}: {held} bytes"
        );
    }
}

#[test]
fn the_smallest_killers_are_refused() {
    let limits = Limits::default();
    let produce = [0xff, 0xff, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff];
    let metadata = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(held(0, 3, &produce, &limits), None);
    assert_eq!(held(3, 9, &metadata, &limits), None);
    // In the versions of every API whose first field is an array.
    for (api_key, version) in messages::all_versions() {
        for killer in [&produce[8..], &metadata] {
            for behind in [0, 1, 5, 40] {
                let mut body = killer.to_vec();
                body.resize(body.len() + behind, 0);
                check(api_key, version, &body, &limits);
            }
        }
    }
}
