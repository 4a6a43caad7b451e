//! A batch of a closed group has a damaged header. Readers that go on behind it go to the next record that anybody can read.

mod support;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::Flip;
use kera_protocol::batch::HEADER_BYTES;
use kera_protocol::ids::GroupId;
use kera_streamlet::{LaneReadSpec, Located};
use support::batches::plain;
use support::{LANE, Machine, Node, settings};

/// Records of the lane, each a batch: more than two segments of 64 KiB, each of which has a place in the index.
const RECORDS: u64 = 60;
const RECORD_BYTES: usize = 3_000;

fn read(node: &Node, ordinal: u64) -> Option<(Vec<u8>, (GroupId, u64))> {
    let found = node.streamlet.read(LaneReadSpec {
        lane: LANE,
        from: Located { ordinal, at: None },
        end_ordinal: u64::MAX,
        max_bytes: 1,
        cached_only: false,
    });
    let found = found.ok()?;
    let bytes = found.bufs.concat();
    let (group, _, end) = found.next.at.expect("a place");
    let address = end - bytes.len() as u64;
    (found.next.ordinal == ordinal + 1).then_some((bytes, (group, address)))
}

/// How many records cannot be read once so many bits of the header of a batch have turned: one, or all that are set.
fn judge(seed: u64) -> usize {
    let mut machine = Machine::fault(seed);
    let node = machine.create(settings(AckPolicy::Written));
    for id in 0..RECORDS {
        node.append(0, &mut plain(id..id + 1, RECORD_BYTES));
    }
    assert!(node.streamlet.close_all(node.now_ms));
    node.work();
    let dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (hurt, bit) = (
        (dice >> 32) % RECORDS,
        (dice >> 8) % (8 * HEADER_BYTES as u64),
    );
    let (bytes, (group, address)) = read(&node, hurt).expect("it is whole");
    let bits = 0..8 * HEADER_BYTES as u64;
    let turned: Vec<u64> = match seed.is_multiple_of(3) {
        true => bits
            .filter(|at| bytes[(at / 8) as usize] >> (at % 8) & 1 == 1)
            .collect(),
        false => vec![bit],
    };
    let path = machine.file(group.0);
    machine.kill(node, usize::MAX);
    for at in &turned {
        let flip = Flip {
            path: path.clone(),
            offset: address + at / 8,
            bit: (at % 8) as u8,
        };
        let fault = machine.fault.as_ref().expect("the double");
        fault.flip(&flip).expect("the file");
    }
    let node = machine.recover(settings(AckPolicy::Written)).0;
    let readable: Vec<bool> = (0..RECORDS).map(|at| read(&node, at).is_some()).collect();
    let mut unreadable = 0;
    for (ordinal, _) in (0..)
        .zip(&readable)
        .filter(|(_, is_readable)| !**is_readable)
    {
        let next = (ordinal + 1..RECORDS).find(|at| readable[*at as usize]);
        assert_eq!(
            node.streamlet.behind_batch(LANE, group, ordinal),
            next,
            "seed {seed}: {} bits of {hurt} from {:?} on, behind {ordinal}",
            turned.len(),
            turned.first()
        );
        unreadable += 1;
    }
    unreadable
}

#[test]
fn who_goes_on_behind_a_damaged_header_misses_what_nobody_can_read_and_nothing_else() {
    let unreadable: Vec<usize> = (1..=150).map(judge).collect();
    let most = unreadable.iter().max().expect("seeds");
    let some = unreadable.iter().filter(|count| **count > 0).count();
    assert!(some > 100 && *most < RECORDS as usize / 2, "{some}, {most}");
}
