//! One bit of a batch's header is turned, so that it leads astray. What lies behind it is read or refused, and is never hidden:
//! a reader that is answered with nothing waits for ever, and one that asks by time begins too late.

mod support;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::Flip;
use kera_protocol::batch::{BatchHeader, HEADER_BYTES};
use kera_protocol::ids::GroupId;
use kera_streamlet::{LaneReadError, LaneReadSpec, Located};
use support::batches::{ids_of, plain};
use support::{LANE, Machine, Node, settings};

/// Batches of a lane, each with two records that are numbered as their ordinals, and of one time.
const BATCHES: u64 = 90;

fn read(from: Located) -> LaneReadSpec {
    LaneReadSpec {
        lane: LANE,
        from,
        end_ordinal: u64::MAX,
        max_bytes: 1,
        cached_only: false,
    }
}

/// Closed groups of many batches each.
fn filled(node: &Node) {
    for number in 0..BATCHES {
        node.append(0, &mut plain(2 * number..2 * number + 2, 400));
        if number % 30 == 29 {
            assert!(node.streamlet.close_all(node.now_ms));
        }
    }
    node.work();
}

/// Group and address of each batch.
fn places(node: &Node) -> Vec<(GroupId, u64)> {
    let (mut all, mut at) = (Vec::new(), Located::default());
    while all.len() < BATCHES as usize {
        let found = node.streamlet.read(read(at)).expect("it is whole");
        let bytes = found.bufs.concat();
        let header = BatchHeader::peek(&bytes[..HEADER_BYTES]).expect("a header");
        assert_eq!(header.base_ordinal, 2 * all.len() as u64);
        let (group, _, end) = found.next.at.expect("a place");
        all.push((group, end - bytes.len() as u64));
        at = found.next;
    }
    all
}

#[test]
fn what_is_behind_a_header_that_leads_astray_is_told() {
    let mut seed = 1;
    let mut machine = Machine::fault(seed);
    let node = machine.create(settings(AckPolicy::Written));
    filled(&node);
    let places = places(&node);
    let mut running = Some(node);
    let mut refused = 0;
    for offset in 0..HEADER_BYTES as u64 {
        for bit in [0, 3, 6] {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (seed >> 33) % BATCHES;
            let (group, address) = places[number as usize];
            let flip = Flip {
                path: machine.file(group.0),
                offset: address + offset,
                bit,
            };
            let turn = |machine: &Machine| {
                let fault = machine.fault.as_ref().expect("the double");
                fault.flip(&flip).expect("the file");
            };
            machine.kill(running.take().expect("a node"), usize::MAX);
            turn(&machine);
            let node = machine.recover(settings(AckPolicy::Written)).0;
            let context = format!("byte {offset} bit {bit} of batch {number}");
            for ordinal in 0..2 * BATCHES {
                let base = ordinal / 2 * 2;
                match node.streamlet.read(read(Located { ordinal, at: None })) {
                    Ok(found) => {
                        let ids = ids_of(&found.bufs.concat());
                        assert_eq!(
                            ids.first(),
                            Some(&(base, base)),
                            "{context}: read {ordinal}"
                        );
                    }
                    Err(LaneReadError::Group(_)) => refused += 1,
                    Err(error) => panic!("{context}: {error}"),
                }
                match node.streamlet.batch_boundary_here(LANE, ordinal, 1, 2) {
                    Ok(Some((_, end))) => assert!(end > ordinal, "{context}: end of {ordinal}"),
                    Ok(None) => panic!("{context}: nothing at {ordinal}"),
                    Err(LaneReadError::Group(_)) => {}
                    Err(error) => panic!("{context}: {error}"),
                }
                if ordinal != base {
                    continue;
                }
                match node.streamlet.find_time_here(LANE, base as i64) {
                    Ok(found) => assert!(found.ordinal <= base, "{context}: time {base}"),
                    Err(LaneReadError::Group(_)) => {}
                    Err(error) => panic!("{context}: {error}"),
                }
            }
            machine.kill(node, usize::MAX);
            turn(&machine);
            running = Some(machine.recover(settings(AckPolicy::Written)).0);
        }
    }
    assert!(refused > 0, "no damage was met");
    let node = running.expect("a node");
    assert_eq!(node.read_all(LANE).len() as u64, 2 * BATCHES);
}
