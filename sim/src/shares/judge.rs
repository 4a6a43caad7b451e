//! The judge of a share group: what was written, who acquired what of it, what they said, and whether all that can be true.
//!
//! Members see less than owners do. A lock may end before its holder hears of it, and an owner whose place another has taken
//! may still hand out records until it hears of that. So a rule about two deliveries is held against those alone whose
//! broker was the recorded owner, under one epoch and without a break, from when it was asked until it answered. An acknowledgement whose
//! answer is lost counts as either.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

/// Brokers count whole milliseconds: a lock may end by as much before its time.
const CUT_OFF: Duration = Duration::from_millis(1);
/// Findings that are kept.
const MOST_FINDINGS: usize = 20;

/// What is said of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Accept,
    Release,
    Reject,
}

/// What became of what was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is kept.
    Kept,
    /// The member that said it has not acquired the records; nothing changed.
    NotHeld,
    /// Nobody can tell.
    Unknown,
}

/// What is set for the group.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deliveries after which a record that comes back is done.
    pub deliveries: u16,
    /// How long a record is locked.
    pub lock: Duration,
}

/// An owner's epoch, and how often owners had stopped serving the group before: an owner that loses its lease for a moment
/// goes on under the same epoch, and has forgotten locks and counts.
pub type Reign = (u32, u64);

/// Records in a row that a fetch acquired.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Of a member at one broker, over one connection.
    pub session: u64,
    pub partition: u32,
    pub first: u64,
    pub last: u64,
    pub count: u16,
    /// When it was asked for, and answered.
    pub sent: Duration,
    pub got: Duration,
    /// `None` if the broker was not the recorded owner all that time, or stopped serving the group meanwhile.
    pub reign: Option<Reign>,
}

/// An acquisition that its session knows of.
#[derive(Clone, Copy, Debug)]
struct Hold {
    session: u64,
    reign: Option<Reign>,
    count: u16,
    sent: Duration,
    got: Duration,
}

/// What is known of a record.
#[derive(Debug, Default)]
struct Known {
    /// What it says.
    number: Option<u64>,
    is_stored: bool,
    /// When it was answered that it is done.
    done: Option<Duration>,
    /// Somebody said so, and has no answer.
    may_be_done: bool,
    /// It was answered that it is accepted, or rejected; or that it is rejected has no answer.
    accepted: bool,
    rejected: bool,
    may_be_rejected: bool,
    /// The count of the last delivery that was seen, and how many answers of the partition were lost before.
    count: u16,
    lost: u64,
    /// The highest count with which it was given back, and when that was answered.
    released: Option<(u16, Duration)>,
    /// The last delivery by a recorded owner: its reign, the count, and when it was answered.
    newest: Option<(Reign, u16, Duration)>,
    holds: Vec<Hold>,
}

/// An acknowledgement under way: what is said of which record, and the acquisition that it is about.
struct Asked {
    partition: u32,
    said: Vec<(u64, Said, Option<Hold>)>,
}

/// A record came to somebody while another session held it, if that session goes on.
struct Suspicion {
    holder: u64,
    since: Duration,
    text: String,
}

#[derive(Default)]
struct Book {
    sent: u64,
    records: BTreeMap<(u32, u64), Known>,
    /// Where each record is, by what it says.
    places: BTreeMap<u64, (u32, u64)>,
    asked: BTreeMap<u64, Asked>,
    numbers: u64,
    /// By partition: fetches without an answer, each of which may have been a delivery.
    lost: BTreeMap<u32, u64>,
    suspicions: Vec<Suspicion>,
    deliveries: u64,
    findings: Vec<String>,
}

impl Book {
    fn complain(&mut self, text: String) {
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(text);
        }
    }
}

/// All that a run's share group did.
pub struct Shares {
    limits: Limits,
    book: Mutex<Book>,
}

impl Shares {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            book: Mutex::default(),
        }
    }

    /// A record is about to be sent; what it is to say.
    pub fn sends(&self) -> u64 {
        let mut book = self.book.lock();
        book.sent += 1;
        book.sent - 1
    }

    /// It is acknowledged to its producer.
    pub fn stored(&self, partition: u32, offset: u64, number: u64) {
        let mut book = self.book.lock();
        let known = book.records.entry((partition, offset)).or_default();
        known.is_stored = true;
        let before = known.number.replace(number);
        if let Some(before) = before.filter(|before| *before != number) {
            book.complain(format!(
                "record {number} was stored at {offset} of partition {partition}, and a member got {before} there"
            ));
        }
    }

    /// A member got records; `numbers` are what they say, by offset.
    pub fn got(&self, delivery: &Delivery, numbers: &BTreeMap<u64, u64>) {
        let mut book = self.book.lock();
        let lost = book.lost.get(&delivery.partition).copied().unwrap_or(0);
        for offset in delivery.first..=delivery.last {
            book.deliveries += 1;
            book.got_one(delivery, offset, numbers.get(&offset), &self.limits, lost);
        }
    }

    /// A fetch of these partitions has no answer: whatever it acquired, nobody knows of it.
    pub fn lost(&self, partitions: impl IntoIterator<Item = u32>) {
        let mut book = self.book.lock();
        for partition in partitions {
            *book.lost.entry(partition).or_default() += 1;
        }
    }

    /// A session is about to say what became of records; a number for what is answered.
    pub fn says(&self, session: u64, partition: u32, runs: &[(u64, u64, Said)]) -> u64 {
        let mut book = self.book.lock();
        let mut said = Vec::new();
        for (first, last, what) in runs {
            for offset in *first..=*last {
                let known = book.records.entry((partition, offset)).or_default();
                let of_session = known.holds.iter().rposition(|hold| hold.session == session);
                let hold = of_session.map(|at| known.holds.remove(at));
                said.push((offset, *what, hold));
            }
        }
        book.numbers += 1;
        let number = book.numbers;
        book.asked.insert(number, Asked { partition, said });
        number
    }

    /// What was said has an answer, or will have none.
    pub fn answered(&self, number: u64, answer: Answer, now: Duration) {
        let book = &mut *self.book.lock();
        let Some(asked) = book.asked.remove(&number) else {
            return;
        };
        for (offset, said, hold) in asked.said {
            book.answered_one(asked.partition, offset, said, hold, answer, now);
        }
    }

    /// A session's request of that moment was answered: the session was there all the time before.
    pub fn alive(&self, session: u64, asked: Duration) {
        let book = &mut *self.book.lock();
        let is_sure = |one: &mut Suspicion| one.holder == session && one.since <= asked;
        let sure: Vec<Suspicion> = book.suspicions.extract_if(.., is_sure).collect();
        for one in sure {
            book.complain(one.text);
        }
    }

    /// A session has ended, or its connection has: its locks may have ended at any moment before.
    pub fn gone(&self, session: u64) {
        let book = &mut *self.book.lock();
        book.suspicions.retain(|one| one.holder != session);
        for known in book.records.values_mut() {
            known.holds.retain(|hold| hold.session != session);
        }
    }

    /// By partition, the end of what was stored.
    pub fn ends(&self) -> BTreeMap<u32, u64> {
        let book = self.book.lock();
        let stored = book.records.iter().filter(|(_, known)| known.is_stored);
        let mut ends = BTreeMap::new();
        for ((partition, offset), _) in stored {
            ends.insert(*partition, offset + 1);
        }
        ends
    }

    /// Records that were stored, and how often one was got.
    pub fn counts(&self) -> (u64, u64) {
        let book = self.book.lock();
        let stored = book.records.values().filter(|known| known.is_stored);
        (stored.count() as u64, book.deliveries)
    }

    /// What cannot be true of the dead letters that there are in the end, by the records that they are about. With `all` none was given
    /// up as one that cannot be written.
    pub fn judge_letters(&self, letters: &BTreeSet<(u32, u64)>, all: bool) {
        let book = &mut *self.book.lock();
        let mut wrong = Vec::new();
        for (partition, offset) in letters {
            let what =
                format!("there is a dead letter of record {offset} of partition {partition}");
            let lost = book.lost.get(partition).copied().unwrap_or(0);
            match book.records.get(&(*partition, *offset)) {
                None => wrong.push(format!("{what}, which nobody wrote")),
                Some(known) if known.accepted => wrong.push(format!("{what}, which was accepted")),
                Some(known) if !known.may_be_given_up(&self.limits, lost) => wrong.push(format!(
                    "{what}, which nobody rejected, and which was delivered {} times of {}",
                    known.count, self.limits.deliveries
                )),
                Some(_) => {}
            }
        }
        let lacks = |place: &(u32, u64), known: &Known| known.rejected && !letters.contains(place);
        let missing = book
            .records
            .iter()
            .filter(|(place, known)| lacks(place, known));
        let missing: Vec<_> = missing.map(|(place, _)| *place).collect();
        if let Some((partition, offset)) = missing.first().filter(|_| all) {
            wrong.push(format!(
                "{} rejected records are no dead letters, such as {offset} of partition {partition}",
                missing.len()
            ));
        }
        wrong.into_iter().for_each(|text| book.complain(text));
    }

    /// What cannot be true. The group says that it is through with everything.
    pub fn findings(&self) -> Vec<String> {
        let book = self.book.lock();
        let mut findings = book.findings.clone();
        let unsettled = book.records.iter().filter(|((partition, _), known)| {
            let lost = book.lost.get(partition).copied().unwrap_or(0);
            known.is_stored && !known.may_be_settled(&self.limits, lost)
        });
        let unsettled: Vec<_> = unsettled.collect();
        if let Some(((partition, offset), known)) = unsettled.first() {
            findings.push(format!(
                "{} records are passed over, such as {offset} of partition {partition}: nobody said that it is done, and it was delivered {} times of {}",
                unsettled.len(),
                known.count,
                self.limits.deliveries
            ));
        }
        findings
    }
}

impl Known {
    /// Whether somebody may have rejected it, or it may have come back after its last delivery.
    fn may_be_given_up(&self, limits: &Limits, lost: u64) -> bool {
        let unseen = lost.saturating_sub(self.lost);
        let is_last = u64::from(self.count) + unseen >= u64::from(limits.deliveries);
        self.rejected || self.may_be_rejected || is_last
    }

    /// Whether it is done, or may be: somebody said so, or it may have had all its deliveries.
    fn may_be_settled(&self, limits: &Limits, lost: u64) -> bool {
        let unseen = lost.saturating_sub(self.lost);
        let may_have_had = u64::from(self.count) + unseen;
        self.done.is_some() || self.may_be_done || may_have_had >= u64::from(limits.deliveries)
    }
}

impl Book {
    fn got_one(
        &mut self,
        delivery: &Delivery,
        offset: u64,
        number: Option<&u64>,
        limits: &Limits,
        lost: u64,
    ) {
        let Delivery {
            session,
            partition,
            count,
            sent,
            got,
            reign,
            ..
        } = *delivery;
        let what = format!("record {offset} of partition {partition} came to session {session}");
        let mut wrong = Vec::new();
        let known = self.records.entry((partition, offset)).or_default();
        match number {
            None => wrong.push("without its bytes".to_owned()),
            Some(number) if *number >= self.sent => {
                wrong.push(format!("as {number}, which nobody wrote"));
            }
            Some(number) => {
                let before = known.number.replace(*number);
                if let Some(before) = before.filter(|before| before != number) {
                    wrong.push(format!("as {number}, and is {before}"));
                }
                let place = *self.places.entry(*number).or_insert((partition, offset));
                if place != (partition, offset) {
                    wrong.push(format!("as {number}, which is at {place:?} as well"));
                }
            }
        }
        // Counts that are not kept may be lost with an owner: then it is delivered once more.
        if count == 0 || count > limits.deliveries + 1 {
            wrong.push(format!("as delivery {count} of {}", limits.deliveries));
        }
        if let Some(reign) = reign {
            if known.done.is_some_and(|done| done <= sent) {
                wrong.push("after it was answered that it is done".to_owned());
            }
            if let Some((least, since)) = known.released
                && since <= sent
                && count <= least
            {
                wrong.push(format!(
                    "as delivery {count}, after it was given back from delivery {least}"
                ));
            }
            if let Some((before, least, since)) = known.newest
                && before == reign
                && since <= sent
                && count <= least
            {
                wrong.push(format!(
                    "as delivery {count} under epoch {}, after delivery {least}",
                    reign.0
                ));
            }
            known.newest = Some((reign, count, got));
            // Sessions that had it before this was asked for, and whose lock has not ended since.
            let holders = known.holds.iter().filter(|hold| {
                let is_others = hold.session != session && hold.reign == Some(reign);
                is_others && hold.got <= sent && got + CUT_OFF < hold.sent + limits.lock
            });
            self.suspicions.extend(holders.map(|hold| Suspicion {
                holder: hold.session,
                since: got,
                text: format!(
                    "{what} while session {} held it: acquired at {:?}, for {:?}",
                    hold.session, hold.got, limits.lock
                ),
            }));
        }
        (known.count, known.lost) = (count, lost);
        known.holds.retain(|hold| hold.session != session);
        known.holds.push(Hold {
            session,
            reign,
            count,
            sent,
            got,
        });
        for wrong in wrong {
            self.complain(format!("{what} {wrong}"));
        }
    }

    fn answered_one(
        &mut self,
        partition: u32,
        offset: u64,
        said: Said,
        hold: Option<Hold>,
        answer: Answer,
        now: Duration,
    ) {
        let known = self.records.entry((partition, offset)).or_default();
        let done = known.done;
        match (answer, said) {
            (Answer::NotHeld, _) | (Answer::Unknown, Said::Release) => {}
            (Answer::Unknown, Said::Reject) => {
                (known.may_be_done, known.may_be_rejected) = (true, true);
            }
            (Answer::Unknown, Said::Accept) => known.may_be_done = true,
            (Answer::Kept, Said::Accept | Said::Reject) => {
                known.done = Some(done.unwrap_or(now));
                known.accepted |= said == Said::Accept;
                known.rejected |= said == Said::Reject;
                if done.is_some() {
                    self.complain(format!(
                        "{said:?} of record {offset} of partition {partition} was kept, and it was done before"
                    ));
                }
            }
            (Answer::Kept, Said::Release) => {
                let Some(hold) = hold else {
                    return;
                };
                let before = known.released.map_or(0, |(count, _)| count);
                known.released = Some((before.max(hold.count), now));
                if done.is_some_and(|done| done <= hold.sent) {
                    self.complain(format!(
                        "record {offset} of partition {partition} was given back by a session that got it after it was done"
                    ));
                }
            }
        }
    }
}
