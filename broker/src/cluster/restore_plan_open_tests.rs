//! Groups that the older state has as open, reboots, and ordinals that were passed over.

use super::*;

/// One group that the older state has as open at its owner, 1, and as replicas at 2 and 3; and what became of it.
#[derive(Clone)]
struct OneGroup {
    owner: u32,
    boots: [u128; 3],
    is_closed: bool,
    /// Own files: in which boot each was last marked as durable, if it was made or looked at for a later owner.
    files: [Option<Option<u128>>; 3],
    replicas: [bool; 3],
}

/// The life of a broker's own files, or of its replicas, of which memory has another id after each boot.
fn life(broker: u32, is_file: bool, boot: u128) -> Incarnation {
    let store = match is_file {
        true => 1000,
        false => 2000 + 100 * boot,
    };
    Incarnation {
        store_id: Uuid::from_u128(store + u128::from(broker)),
        boot_id: Uuid::from_u128(7 + boot),
    }
}

impl OneGroup {
    fn new() -> Self {
        Self {
            owner: 1,
            boots: [0; 3],
            is_closed: false,
            files: [Some(None), None, None],
            replicas: [false, true, true],
        }
    }

    /// A broker ends, perhaps with its machine, and starts again once another has taken over from it.
    fn ends(&mut self, broker: u32, is_reboot: bool, next: u32) {
        let (at, to) = (broker as usize - 1, next as usize - 1);
        self.boots[at] += u128::from(is_reboot);
        match (broker == self.owner, self.is_closed) {
            (false, true) => return,
            // Without it; it is given another one.
            (false, false) => self.replicas[at] = true,
            (true, _) => {
                if !self.is_closed {
                    // Its file is not recorded any more.
                    self.files[at] = None;
                    self.replicas[at] = true;
                }
                let boot = self.boots[to];
                self.files[to].get_or_insert(Some(boot));
                self.replicas[to] = false;
                self.owner = next;
            }
        }
        self.is_closed = true;
    }

    fn record() -> GroupRecord {
        let copies = [(1, true), (2, false), (3, false)];
        let copies = copies.map(|(broker, is_file)| Replica {
            broker: BrokerId(broker),
            incarnation: life(broker, is_file, 0),
        });
        GroupRecord {
            copies: copies.to_vec(),
            ..open(3, Some(0), &[])
        }
    }

    fn held(&self, broker: u32, has_footer: bool) -> Held {
        let at = broker as usize - 1;
        let own = life(broker, true, self.boots[at]);
        let named = Self::record().copies[at].incarnation;
        let holding = match (self.files[at], self.replicas[at]) {
            (Some(marked), _) => {
                let is_decided = is_decided(
                    AckPolicy::Written,
                    (named, own),
                    marked.map(|boot| life(broker, true, boot)),
                );
                Some(Holding {
                    is_closed: is_decided || has_footer && marked.is_none(),
                    is_decided,
                    ..file((3, 0), (0, 10))
                })
            }
            (None, true) => Some(open_file(3, (0, 10))),
            (None, false) => None,
        };
        let mut held = held(broker, holding.as_slice(), &[]);
        for one in &mut held.holdings {
            let is_file = self.files[at].is_some();
            one.replica.incarnation = life(broker, is_file, self.boots[at]);
        }
        held.stores = [true, false]
            .map(|is_file| life(broker, is_file, self.boots[at]).store_id)
            .to_vec();
        held
    }

    /// Whether a broker's word about it counts, or it is recorded to its end.
    fn counts(&self, record: &GroupRecord) -> bool {
        let counts = |copy: &Replica| {
            let at = copy.broker.0 as usize - 1;
            let own = life(copy.broker.0, true, self.boots[at]);
            self.files[at].is_some() && copy.incarnation == own
        };
        match record.is_closed() {
            true => record.end_ordinal == 10,
            false => record.copies.iter().any(counts),
        }
    }
}

#[test]
fn whoever_has_owned_a_group_since_its_word_counts_that_is_open_in_the_older_state() {
    let all = || (1..=3).flat_map(|broker| [false, true].map(|is_reboot| (broker, is_reboot)));
    let mut left = vec![(OneGroup::new(), false)];
    let mut histories = 0;
    for _ in 0..3 {
        let mut after_more = Vec::new();
        for (group, footer) in &left {
            for (broker, is_reboot) in all() {
                for next in (1..=3).filter(|next| *next != broker) {
                    let mut now = group.clone();
                    // Its owner closes it where another has ended.
                    let footer = *footer || (!now.is_closed && broker != now.owner);
                    now.ends(broker, is_reboot, next);
                    let brokers = [1, 2, 3].map(|id| now.held(id, footer));
                    let found = after(&[OneGroup::record()], &brokers, true);
                    let boots = now.boots;
                    assert!(now.counts(&found[0]), "{boots:?}: {found:?}");
                    histories += 1;
                    after_more.push((now, footer));
                }
            }
        }
        left = after_more;
    }
    assert!(histories > 1_500);
}

#[test]
fn what_an_owner_has_of_before_a_reboot_says_nothing_by_itself() {
    let named = life(1, true, 0);
    let now = life(1, true, 1);
    let of = |ack, marked| is_decided(ack, (named, now), marked);
    assert!(!of(AckPolicy::Written, None));
    assert!(!of(AckPolicy::Written, Some(named)), "more was appended");
    assert!(of(AckPolicy::Written, Some(now)));
    // In memory each process has a life of its own, and marks name the boot.
    assert!(!of(AckPolicy::Memory, Some(now)));
    assert!(is_decided(
        AckPolicy::Memory,
        (life(1, false, 0), now),
        None
    ));
    // Another owner of an earlier epoch made it, and nobody recorded that.
    let mut group = OneGroup::new();
    group.ends(1, false, 2);
    let mut held = group.held(2, false);
    held.holdings[0].epoch = Epoch(4);
    let record = OneGroup::record();
    let planned = plan(lane(0, true), [record.clone()], &held, &cut);
    assert_eq!(planned.groups.into_values().next(), Some(record));
}

#[test]
fn a_store_that_a_reboot_has_taken_has_nothing_of_the_groups_that_it_had() {
    let records = [closed(1, (0, 10), &[1, 2]), closed(2, (10, 20), &[1, 2])];
    let files = [file((200, 0), (40, 50))];
    let rebooted = |id: u32, boot: Option<u128>| Held {
        stores: vec![Uuid::from_u128(100 + u128::from(id))],
        boot: boot.map(Uuid::from_u128),
        ..held(id, &files, &[])
    };
    let of = |boot| {
        let brokers = [rebooted(1, boot), held(2, &files, &[])];
        let found = seen(&after(&records, &brokers, true));
        found.iter().map(|one| one.0).collect::<Vec<_>>()
    };
    assert_eq!(of(Some(2)), [200]);
    // It has another store, or another directory, in the same boot.
    assert_eq!(of(Some(1)), [1, 2, 200]);
    assert_eq!(of(None), [1, 2, 200]);
}

#[test]
fn ordinals_that_were_passed_over_end_no_run_of_trimmed_groups() {
    let jump = GroupRecord {
        next_ordinal: 100,
        ..closed(2, (11, 11), &[1])
    };
    let records = [
        closed(1, (0, 11), &[1, 2]),
        jump,
        closed(3, (100, 110), &[1, 2]),
    ];
    let files = [file((200, 0), (120, 130))];
    let brokers = [held(1, &files, &[]), held(2, &files, &[])];
    let found = seen(&after(&records, &brokers, true));
    assert_eq!(found, [(200, 0, 120, 130, vec![1, 2])]);
}
