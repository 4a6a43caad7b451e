//! A batch of a closed group has a damaged header. Readers that go on behind it go to the next record that anybody can read.

mod support;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::Flip;
use kera_protocol::batch::{HEADER_BYTES, crc32c, patch, verify};
use kera_protocol::ids::{Epoch, GroupId};
use kera_streamlet::{LaneReadSpec, Located};
use support::batches::plain;
use support::{LANE, Machine, Node, settings};

/// Records of the lane, each a batch: more than two segments of 64 KiB, each of which has a place in the index.
const RECORDS: u64 = 60;
const RECORD_BYTES: usize = 3_000;
/// Bytes of a batch that its length does not count.
const LENGTH_BASE: usize = 12;

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

/// A place in the file of the only group: a batch, and an offset in it.
#[derive(Clone, Copy, Debug)]
struct Spot {
    batch: u64,
    offset: usize,
}

/// Where a length of `total` leads once these bits of it have turned, if that is in a batch of records of that size.
fn led_to(hurt: u64, total: usize, bits: u32) -> Option<Spot> {
    let turned = (total - LENGTH_BASE) as u32 ^ bits;
    let leads = usize::try_from(turned).ok()?.checked_add(LENGTH_BASE)?;
    let spot = Spot {
        batch: hurt + (leads / total) as u64,
        offset: leads % total,
    };
    let has_room = HEADER_BYTES + 20..total - HEADER_BYTES - 20;
    (spot.batch < RECORDS && has_room.contains(&spot.offset)).then_some(spot)
}

/// Makes of the value in a batch a whole batch that begins with `first`, at a spot. If that lies behind the batch whose length
/// turns, the last of the ordinals and the last of the bytes are those of the batch around it.
fn forge(batch: &mut [u8], spot: Spot, first: u64, epoch: Epoch) {
    let end = match spot.batch >= first {
        true => batch.len(),
        false => spot.offset + HEADER_BYTES + 15,
    };
    let forged = &mut batch[spot.offset..end];
    let mut header = plain(0..1, 8)[..HEADER_BYTES].to_vec();
    let length = (forged.len() - LENGTH_BASE) as i32;
    header[8..12].copy_from_slice(&length.to_be_bytes());
    let delta = spot.batch.saturating_sub(first) as i32;
    header[23..27].copy_from_slice(&delta.to_be_bytes());
    forged[..HEADER_BYTES].copy_from_slice(&header);
    patch(forged, first, epoch);
    seal(forged);
    assert!(verify(forged).is_ok());
    seal(batch);
}

fn seal(batch: &mut [u8]) {
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// Turns bits of a batch's length, where a batch in a payload stands that would follow then. How many records cannot be read;
/// `None` if there is no such place for these bits.
fn judge_forged(seed: u64) -> Option<usize> {
    let mut machine = Machine::fault(seed);
    let node = machine.create(settings(AckPolicy::Written));
    let dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let hurt = 1 + (dice >> 32) % (RECORDS - 6);
    // Of this size are all batches but those of the first ids, which are written shorter.
    let total = plain(hurt..hurt + 1, RECORD_BYTES).len();
    let bit = |shift: u64| 1_u32 << ((dice >> shift) % 14);
    let bits = match seed.is_multiple_of(3) {
        true => bit(8) | bit(16),
        false => bit(8),
    };
    let spot = led_to(hurt, total, bits)?;
    let is_beyond = spot.batch > hurt;
    if is_beyond && bits.count_ones() > 1 {
        // Somebody who knew of that damage could lead on to what truly follows, and nobody could tell.
        return None;
    }
    let mut originals = Vec::new();
    let mut epoch = Epoch(0);
    for id in 0..RECORDS {
        let mut batch = plain(id..id + 1, RECORD_BYTES);
        if id == spot.batch {
            forge(&mut batch, spot, hurt + 1, epoch);
        }
        node.append(0, &mut batch);
        epoch = verify(&batch).expect("it is whole").epoch;
        originals.push(batch);
    }
    assert!(node.streamlet.close_all(node.now_ms));
    node.work();
    let (bytes, (group, address)) = read(&node, hurt).expect("it is whole");
    assert_eq!(bytes.len(), total);
    let path = machine.file(group.0);
    machine.kill(node, usize::MAX);
    for at in (0..u32::BITS).filter(|at| bits >> at & 1 == 1) {
        let flip = Flip {
            path: path.clone(),
            offset: address + 11 - u64::from(at / 8),
            bit: (at % 8) as u8,
        };
        let fault = machine.fault.as_ref().expect("the double");
        fault.flip(&flip).expect("the file");
    }
    let node = machine.recover(settings(AckPolicy::Written)).0;
    let mut unreadable = Vec::new();
    for (ordinal, original) in (0..).zip(&originals) {
        match read(&node, ordinal) {
            Some((bytes, _)) => assert!(bytes == *original, "seed {seed}: {ordinal} is invented"),
            None => unreadable.push(ordinal),
        }
    }
    for ordinal in &unreadable {
        let next = (*ordinal..RECORDS).find(|at| !unreadable.contains(at));
        let behind = node.streamlet.behind_batch(LANE, group, *ordinal);
        assert_eq!(behind, next, "seed {seed}: behind {ordinal}");
    }
    match (bits.count_ones(), is_beyond) {
        (1, false) => assert_eq!(unreadable, [hurt], "seed {seed}: its length is known again"),
        // Both lengths may lead on to what follows, and nobody can tell which is meant.
        (1, true) => assert_eq!(unreadable.first(), Some(&hurt), "seed {seed}"),
        _ => {}
    }
    Some(unreadable.len())
}

#[test]
fn no_record_is_invented_out_of_a_payload_behind_a_damaged_length() {
    let unreadable: Vec<usize> = (1..=200).filter_map(judge_forged).collect();
    let several = unreadable.iter().filter(|count| **count > 1).count();
    let judged = unreadable.len();
    assert!(judged > 60 && several > 5, "{judged}, {several}");
}

#[test]
fn who_goes_on_behind_a_damaged_header_misses_what_nobody_can_read_and_nothing_else() {
    let unreadable: Vec<usize> = (1..=150).map(judge).collect();
    let most = unreadable.iter().max().expect("seeds");
    let some = unreadable.iter().filter(|count| **count > 0).count();
    assert!(some > 100 && *most < RECORDS as usize / 2, "{some}, {most}");
}
