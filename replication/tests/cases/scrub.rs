//! Copies of closed groups are compared, and those that are not right replaced.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_protocol::ids::Epoch;
use kera_records::{GroupRecord, Transaction, Write};
use kera_replication::ids::{BrokerId, CopyId, Incarnation};
use kera_replication::jobs::{JobConfig, Jobs, Mend, Mended, Owned};
use kera_replication::own::{OwnRef, OwnReplicas};
use kera_replication::primary::Primary;
use kera_replication::records::commit;
use kera_replication::recovery::{Recovered, Unclean};
use kera_replication::transport::{Pending, Refusal, Reply, Request, Seal};

use crate::jobs::{bytes, closed, jobs, owned, record};
use crate::suite::test_group::SHAPE;
use crate::suite::{Plan, Stage, busy};
use crate::{Case, OWNER, another, calm, case, own, planned};

/// Writes bytes over those of a copy, as only a broken disk does.
async fn overwrite(case: &Case, at: BrokerId, copy: CopyId, address: u64, with: Vec<u8>) {
    let seal = Request::Seal(Seal {
        streamlet: copy.streamlet,
        epoch: copy.epoch,
        copies: Vec::new(),
    });
    case.ask(at, seal).await;
    let spoiled = Request::Complete {
        copy,
        epoch: copy.epoch,
        segment_size: SHAPE.segment_size,
        segments: SHAPE.segments,
        address,
        bytes: with.into(),
    };
    case.ask(at, spoiled).await;
    // On its disk again, as it was.
    let flush = Request::Flush {
        copy,
        length: 0,
        closed: true,
    };
    let _ = case.stage.transport(OWNER).call(at, flush).await;
}

/// Flips one bit of a copy, in the last batch.
pub async fn flip(case: &Case, at: BrokerId, copy: CopyId, length: u64) {
    let whole = bytes(case, at, copy, length).await;
    let address = length - 3;
    overwrite(case, at, copy, address, vec![whole[address as usize] ^ 8]).await;
    assert_ne!(bytes(case, at, copy, length).await, whole);
}

#[test]
fn a_flipped_bit_at_a_backup_stays_until_copies_are_compared() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let whole = bytes(&case, OWNER, copy, before.length).await;
        flip(&case, at, copy, before.length).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        for _ in 0..5 {
            jobs.round().await;
        }
        assert_eq!(record(&case, copy), before, "nobody has noticed");
        assert_ne!(bytes(&case, at, copy, before.length).await, whole);

        jobs.scrub_all().await;
        let after = record(&case, copy);
        assert_eq!(after.copies.len(), 3);
        for holder in &after.copies {
            let held = bytes(&case, holder.broker, copy, before.length).await;
            assert_eq!(held, whole, "{holder:?}");
        }
        let stats = jobs.stats();
        assert_eq!((stats.damaged, stats.mended, stats.unsound), (1, 1, 0));
        // There was a broker without one, so it was built there; the damaged one is freed.
        assert!(after.copies.iter().all(|h| h.broker != at), "{after:?}");
        jobs.round().await;
        assert!(case.copies(at).await.iter().all(|info| info.copy != copy));
        jobs.scrub_all().await;
        assert_eq!(record(&case, copy), after, "all is well");
        assert_eq!(jobs.stats().mended, 1);
    });
}

#[test]
fn where_no_other_broker_is_left_the_holder_takes_another_copy() {
    case(|mut case| async move {
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let whole = bytes(&case, OWNER, copy, before.length).await;
        flip(&case, at, copy, before.length).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        jobs.scrub_all().await;
        assert_eq!(record(&case, copy).copies.len(), 4);
        assert_eq!(bytes(&case, at, copy, before.length).await, whole);
        assert_eq!((jobs.stats().mended, jobs.stats().unsound), (1, 0));
    });
}

#[test]
fn a_truncated_copy_and_one_that_is_gone_are_replaced() {
    for gone in [false, true] {
        case(move |mut case| async move {
            case.plan.replicas = 4;
            let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
            let lane = case.lane(&primary, &recovered);
            let group = closed(&case, &lane).await;
            let (copy, at) = (group.0.id(), another(&group));
            let before = record(&case, copy);
            let whole = bytes(&case, OWNER, copy, before.length).await;
            if gone {
                let free = Request::Free {
                    copy,
                    epoch: recovered.epoch,
                    version: None,
                };
                case.ask(at, free).await;
            } else {
                overwrite(&case, at, copy, before.length - 100, vec![0; 100]).await;
            }
            let jobs = jobs(&case, &primary, &recovered, busy());
            jobs.scrub_all().await;
            assert_eq!(bytes(&case, at, copy, before.length).await, whole);
            let stats = jobs.stats();
            let found = (stats.damaged, stats.missing, stats.mended, stats.unsound);
            let expected = if gone { (0, 1, 1, 0) } else { (1, 0, 1, 0) };
            assert_eq!(found, expected);
        });
    }
}

/// Of a group that was recorded again a holder may have less. No disk is blamed for that, and who does not answer is asked again.
#[test]
fn a_holder_that_was_recorded_with_too_much_is_replaced_once_it_answers() {
    case(|mut case| async move {
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let whole = bytes(&case, OWNER, copy, before.length).await;
        overwrite(&case, at, copy, before.length - 100, vec![0; 100]).await;
        let short = bytes(&case, at, copy, before.length).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        case.stage.pause(at, true);
        jobs.confirm(copy.streamlet, vec![copy]).await;
        case.stage.pause(at, false);
        assert_eq!(bytes(&case, at, copy, before.length).await, short);
        jobs.scrub_due().await;
        assert_eq!(bytes(&case, at, copy, before.length).await, whole);
        let stats = jobs.stats();
        let found = (stats.damaged, stats.missing, stats.mended, stats.unsound);
        assert_eq!(found, (0, 0, 1, 0));
        // What is wrong later is a disk's fault.
        overwrite(&case, at, copy, before.length - 100, vec![0; 100]).await;
        jobs.scrub_all().await;
        assert_eq!((jobs.stats().damaged, jobs.stats().mended), (1, 2));
    });
}

/// Another batch in place of a copy's own, whole and with the ordinals of the one it replaces.
async fn forge(case: &Case, at: BrokerId, copy: CopyId, length: u64) {
    let mut whole = bytes(case, at, copy, length).await;
    let first = group_start(&whole);
    let len = 12 + u32::from_be_bytes(whole[first + 8..first + 12].try_into().expect("4")) as usize;
    // The base timestamp, and the checksum over it.
    whole[first + 27 + 7] ^= 1;
    let crc = kera_protocol::batch::crc32c(&whole[first + 21..first + len]);
    whole[first + 17..first + 21].copy_from_slice(&crc.to_be_bytes());
    let batch = whole[first..first + len].to_vec();
    overwrite(case, at, copy, first as u64, batch).await;
}

fn group_start(whole: &[u8]) -> usize {
    use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
    let header = SegmentHeader::decode(&whole[..SEGMENT_HEADER_BYTES]).expect("a header");
    SEGMENT_HEADER_BYTES + header.snapshot_bytes as usize
}

#[test]
fn a_copy_that_is_whole_and_differs_from_most_is_replaced() {
    case(|mut case| async move {
        case.plan.replicas = 4;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let whole = bytes(&case, OWNER, copy, before.length).await;
        forge(&case, at, copy, before.length).await;
        let jobs = jobs(&case, &primary, &recovered, busy());
        jobs.scrub_all().await;
        assert_eq!(bytes(&case, at, copy, before.length).await, whole);
        let stats = jobs.stats();
        assert_eq!((stats.differing, stats.damaged, stats.mended), (1, 0, 1));
    });
}

#[test]
fn whole_copies_that_differ_without_a_majority_are_left_alone() {
    case(|mut case| async move {
        case.plan.replicas = 2;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        forge(&case, at, copy, before.length).await;
        let forged = bytes(&case, at, copy, before.length).await;
        let whole = bytes(&case, OWNER, copy, before.length).await;
        assert_ne!(forged, whole);
        let jobs = jobs(&case, &primary, &recovered, busy());
        jobs.scrub_all().await;
        jobs.scrub_due().await;
        assert_eq!(record(&case, copy), before);
        assert_eq!(bytes(&case, at, copy, before.length).await, forged);
        assert_eq!(bytes(&case, OWNER, copy, before.length).await, whole);
        assert_eq!((jobs.stats().mended, jobs.stats().unsound), (0, 1));
    });
}

#[test]
fn damage_that_cannot_be_repaired_yet_is_tried_again() {
    case(|mut case| async move {
        case.plan.replicas = 2;
        case.plan.min_insync_replicas = 1;
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let whole = bytes(&case, OWNER, copy, before.length).await;
        // The only good copy is not to be had for now.
        let good = before.copies.iter().find(|h| h.broker != at);
        let good = good.expect("another").broker;
        flip(&case, at, copy, before.length).await;
        case.stage.pause(good, true);
        let jobs = jobs(&case, &primary, &recovered, busy());
        jobs.scrub_all().await;
        assert_eq!(record(&case, copy), before);
        assert_eq!((jobs.stats().damaged, jobs.stats().unsound), (1, 1));
        case.stage.pause(good, false);
        jobs.scrub_due().await;
        let after = record(&case, copy);
        for holder in &after.copies {
            assert_eq!(
                bytes(&case, holder.broker, copy, before.length).await,
                whole
            );
        }
        let stats = jobs.stats();
        assert_eq!((stats.damaged, stats.mended, stats.unsound), (1, 1, 0));
    });
}

#[test]
fn every_streamlet_has_its_turn_within_the_interval() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, at) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let config = JobConfig {
            scrub_interval: Duration::from_secs(20),
            ..busy()
        };
        let jobs = jobs(&case, &primary, &recovered, config);
        let running = jobs.clone().run_scrubs();
        primary.runtime().spawn(Box::pin(running));
        case.wait(Duration::from_secs(21)).await;
        let first = jobs.stats();
        assert!(first.scrubbed >= 1, "{first:?}");
        assert!(first.scrubbed_bytes >= 3 * before.length, "{first:?}");
        flip(&case, at, copy, before.length).await;
        case.wait(Duration::from_secs(26)).await;
        assert_eq!(jobs.stats().mended, 1);
        let turns = jobs.stats().scrubbed;
        assert!(
            turns < 8,
            "it is looked at no more often than asked: {turns}"
        );
    });
}

#[test]
fn how_far_comparing_has_come_is_told_for_what_is_owned_now() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let _group = closed(&case, &lane).await;
        let owned = owned(&case, &recovered);
        // Of the second nothing is recorded: it cannot be looked at.
        let mut unknown = owned.clone();
        unknown.streamlet.streamlet.0 += 1;
        let now = Arc::new(Mutex::new(vec![owned.clone(), unknown]));
        let told = now.clone();
        let jobs = Jobs::new(
            &primary,
            Box::new(move |_| told.lock().expect("no panic").clone()),
            busy(),
        );
        let far = || {
            let stats = jobs.stats();
            let whole = stats.scrub_whole.is_some();
            (stats.scrub_streamlets, stats.scrub_done, whole)
        };
        assert_eq!(far(), (2, 0, false));
        jobs.scrub_all().await;
        assert_eq!(far(), (2, 1, false));
        now.lock().expect("no panic").truncate(1);
        assert_eq!(far(), (1, 1, true));
        case.wait(Duration::from_secs(100)).await;
        let since = jobs.stats().scrub_whole.expect("all were compared");
        assert!(since >= Duration::from_secs(100), "{since:?}");
        jobs.scrub_all().await;
        let again = jobs.stats().scrub_whole.expect("all were compared");
        assert!(again < since, "{again:?} after {since:?}");
        // What comes back is another's until it has been looked at again.
        now.lock().expect("no panic").clear();
        assert_eq!(far(), (0, 0, false));
        jobs.scrub_due().await;
        now.lock().expect("no panic").push(owned);
        assert_eq!(far(), (1, 0, false));
    });
}

/// Fetches the own file from a backup, as a broker does.
struct FromBackup {
    stage: Arc<crate::common::SimStage>,
    from: BrokerId,
}

impl Mend for FromBackup {
    fn is_settled(&self, _: &GroupRecord) -> bool {
        true
    }

    fn mend(&self, record: &GroupRecord) -> Pending<Mended> {
        let (stage, from, copy) = (self.stage.clone(), self.from, CopyId::of(record));
        let len = record.length as u32;
        Box::pin(async move {
            let read = Request::Read {
                copy,
                address: 0,
                len,
            };
            let read = stage.transport(OWNER).call(from, read).await;
            let Ok(Reply::Bytes(bytes)) = read else {
                return Mended::No;
            };
            let path = stage.own(OWNER).expect("it has files").path(&copy);
            fs::write(path, bytes).expect("is written");
            Mended::Yes
        })
    }
}

fn jobs_with_own(
    case: &Case,
    primary: &Arc<Primary>,
    recovered: &Recovered,
    from: BrokerId,
) -> Arc<Jobs> {
    let owned = Owned {
        mend: Some(Arc::new(FromBackup {
            stage: case.stage.clone(),
            from,
        })),
        ..owned(case, recovered)
    };
    Jobs::new(primary, Box::new(move |_| vec![owned.clone()]), busy())
}

#[test]
fn the_owners_own_file_is_made_anew_from_a_copy() {
    for harm in ["flipped", "truncated", "gone"] {
        let plan = Plan {
            own: true,
            replicas: 3,
            min_insync_replicas: 2,
            ..calm()
        };
        planned(plan, move |case| async move {
            let (primary, recovered) = own::take_over(&case).await;
            let lane = case.lane(&primary, &recovered);
            let group = own::closed(&case, &lane).await;
            let (copy, from) = (group.0.id(), another(&group));
            let before = record(&case, copy);
            let whole = own::own_bytes(&case, copy, before.length).await;
            let path = case.stage.own(OWNER).expect("files").path(&copy);
            let mut file = fs::read(&path).expect("the file");
            match harm {
                "flipped" => {
                    file[before.length as usize - 3] ^= 8;
                    fs::write(&path, file).expect("is written");
                }
                "truncated" => {
                    file.truncate(before.length as usize - 1);
                    fs::write(&path, file).expect("is written");
                }
                _ => fs::remove_file(&path).expect("is removed"),
            }
            let jobs = jobs_with_own(&case, &primary, &recovered, from);
            jobs.scrub_all().await;
            assert_eq!(own::own_bytes(&case, copy, before.length).await, whole);
            assert_eq!(record(&case, copy), before, "{harm}: its place is the same");
            let stats = jobs.stats();
            assert_eq!((stats.mended, stats.unsound), (1, 0), "{harm}");
        });
    }
}

/// Own files of which nothing can be told while the disk gives no answer.
struct Mute {
    files: OwnRef,
    is_mute: AtomicBool,
}

impl OwnReplicas for Mute {
    fn incarnation(&self) -> Incarnation {
        self.files.incarnation()
    }

    fn process(&self) -> Incarnation {
        self.files.process()
    }

    fn ask(&self, request: Request) -> Pending<Result<Reply, Refusal>> {
        let is_look = matches!(request, Request::Read { .. } | Request::Check { .. });
        match is_look && self.is_mute.load(Ordering::Relaxed) {
            true => Box::pin(async { Err(Refusal::Failed("input/output error".into())) }),
            false => self.files.ask(request),
        }
    }
}

#[test]
fn an_own_file_of_which_nothing_can_be_told_is_not_said_to_be_gone() {
    let plan = Plan {
        own: true,
        replicas: 3,
        min_insync_replicas: 2,
        ..calm()
    };
    planned(plan, |case| async move {
        let own = Arc::new(Mute {
            files: case.stage.own(OWNER).expect("it has files"),
            is_mute: AtomicBool::new(false),
        });
        let primary = Arc::new(case.primary(OWNER).with_own(own.clone()));
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = own::closed(&case, &lane).await;
        let (copy, from) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let jobs = jobs_with_own(&case, &primary, &recovered, from);
        own.is_mute.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            jobs.round().await;
        }
        assert!(jobs.missing().is_empty(), "{:?}", jobs.missing());
        assert_eq!(
            (jobs.stats().built, record(&case, copy)),
            (0, before.clone())
        );
        // One that is gone is another matter.
        own.is_mute.store(false, Ordering::Relaxed);
        let path = case.stage.own(OWNER).expect("files").path(&copy);
        fs::remove_file(&path).expect("is removed");
        jobs.round().await;
        assert_eq!(jobs.stats().built, 1, "another broker takes one");
    });
}

/// Own files of a group that goes, as a trim or compaction has it, in the moment in which they are looked at.
struct Going {
    files: OwnRef,
    stage: Arc<crate::common::SimStage>,
    epoch: Epoch,
    group: Mutex<Option<GroupRecord>>,
    /// The streamlet knows that.
    is_gone: AtomicBool,
}

impl Going {
    async fn go(stage: &crate::common::SimStage, epoch: Epoch, record: GroupRecord) {
        let copy = CopyId::of(&record);
        let gone = Write::delete_group(record.key(), record.revision);
        let change = Transaction::of_groups(copy.streamlet, epoch, [gone]);
        let (records, runtime) = (stage.records(OWNER), stage.runtime(OWNER));
        let done = commit(&records, &*runtime, &change, false).await;
        done.expect("it is recorded");
        let brokers = record.copies.iter().map(|replica| replica.broker);
        for broker in brokers.filter(|broker| *broker != OWNER) {
            let free = Request::free(copy, epoch, None);
            let freed = stage.transport(OWNER).call(broker, free).await;
            freed.expect("it is freed");
        }
    }
}

impl OwnReplicas for Going {
    fn incarnation(&self) -> Incarnation {
        self.files.incarnation()
    }

    fn process(&self) -> Incarnation {
        self.files.process()
    }

    fn ask(&self, request: Request) -> Pending<Result<Reply, Refusal>> {
        let is_look = matches!(request, Request::Read { .. } | Request::Check { .. });
        match self.group.lock().expect("no panic").take_if(|_| is_look) {
            Some(record) => {
                let (stage, epoch) = (self.stage.clone(), self.epoch);
                self.is_gone.store(true, Ordering::Relaxed);
                Box::pin(async move {
                    Self::go(&stage, epoch, record).await;
                    Err(Refusal::Unknown)
                })
            }
            None => self.files.ask(request),
        }
    }
}

impl Mend for Going {
    fn is_settled(&self, _: &GroupRecord) -> bool {
        !self.is_gone.load(Ordering::Relaxed)
    }

    fn mend(&self, _: &GroupRecord) -> Pending<Mended> {
        Box::pin(async { Mended::No })
    }
}

#[test]
fn a_group_that_goes_while_it_is_looked_at_is_not_said_to_be_lost() {
    for scrubs in [true, false] {
        let plan = Plan {
            own: true,
            replicas: 3,
            min_insync_replicas: 2,
            ..calm()
        };
        planned(plan, move |case| async move {
            let files = case.stage.own(OWNER).expect("it has files");
            let (primary, recovered) = own::take_over(&case).await;
            let lane = case.lane(&primary, &recovered);
            let group = own::closed(&case, &lane).await;
            let record = record(&case, group.0.id());
            let going = Arc::new(Going {
                files,
                stage: case.stage.clone(),
                epoch: recovered.epoch,
                group: Mutex::new(Some(record)),
                is_gone: AtomicBool::new(false),
            });
            let primary = Arc::new(case.primary(OWNER).with_own(going.clone()));
            let owned = Owned {
                mend: Some(going.clone()),
                ..owned(&case, &recovered)
            };
            let jobs = Jobs::new(&primary, Box::new(move |_| vec![owned.clone()]), busy());
            match scrubs {
                true => jobs.scrub_all().await,
                false => jobs.round().await,
            }
            assert!(going.is_gone.load(Ordering::Relaxed), "it was looked at");
            assert!(jobs.missing().is_empty(), "{:?}", jobs.missing());
            let stats = jobs.stats();
            assert_eq!((stats.missing, stats.unsound, stats.failed), (0, 0, 0));
        });
    }
}

#[test]
fn a_copy_is_checked_where_it_is_and_nothing_is_made_up() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let mut copy = group.0.id();
        copy.group.0 += 1;
        let check = Request::Check {
            copy,
            from: Default::default(),
            bytes: 1000,
            end: Default::default(),
        };
        let asked = case
            .stage
            .transport(OWNER)
            .call(another(&group), check)
            .await;
        let refused = asked.expect_err("there is none");
        assert_eq!(refused.refusal(), Some(&Refusal::Unknown));
    });
}
