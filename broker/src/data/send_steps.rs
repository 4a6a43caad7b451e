//! Whose turn it is to be sent something while all connections together hold too much that waits to be sent.
//!
//! A connection goes on in small steps then. A step brings one batch at least, and a batch may be large: so connections that
//! are at a step hold a part of the limit together, and no more. The others wait in the order in which they asked, those whose
//! clients have taken a step before in a row of their own, which has every second turn: clients that take nothing do not
//! keep those that do from going on.
//!
//! A step ends once all of it is sent. Clients that take nothing have little time for that while others wait
//! ([`Claims::is_unread`](super::memory_budget::Claims::is_unread)).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::Mutex;

use super::memory_budget::MOST_IN_A_CROWD;

/// A step brings a batch, or so much.
const LEAST: u64 = MOST_IN_A_CROWD as u64;

/// The turns of all connections.
#[derive(Debug)]
pub struct SendSteps {
    /// Bytes that those which are at a step hold together, about.
    most: u64,
    rows: Mutex<Rows>,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Rows {
    /// Bytes of steps.
    held: u64,
    /// Bytes that are counted of a step until it is known what it brings: what the largest did lately.
    expected: u64,
    /// Those whose clients have taken a step before, and the others.
    rows: [VecDeque<Arc<Place>>; 2],
    /// The row whose turn it is next.
    next: usize,
}

/// A place in a row.
#[derive(Debug)]
pub(super) struct Place(Mutex<Waits>);

#[derive(Debug)]
enum Waits {
    For(Waker),
    /// A step of so many bytes is held for it.
    Granted(u64),
    /// There is no crowd any more.
    Over,
}

/// What came of asking for a step.
pub(super) enum Asked {
    Step(Step),
    Place(Arc<Place>),
}

/// Leave to send one step. It ends when dropped.
#[derive(Debug)]
pub struct Step {
    of: Arc<SendSteps>,
    bytes: u64,
    /// It has brought something. One that did not says nothing of what others will.
    has_brought: bool,
}

impl SendSteps {
    /// Nobody is at a step yet; `most` bytes are for all steps together.
    pub(super) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self {
            most,
            rows: Mutex::new(Rows {
                expected: LEAST,
                ..Rows::default()
            }),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Connections that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A step, or a place in a row: `waker` is woken once there is a step for it.
    pub(super) fn ask(self: &Arc<Self>, waker: &Waker, has_taken: bool) -> Asked {
        let mut rows = self.rows.lock();
        if rows.rows.iter().all(VecDeque::is_empty) && self.has_room(&rows) {
            rows.held += rows.expected;
            return Asked::Step(self.begin(rows.expected));
        }
        let place = Arc::new(Place(Mutex::new(Waits::For(waker.clone()))));
        rows.rows[usize::from(!has_taken)].push_back(place.clone());
        self.count(&rows);
        Asked::Place(place)
    }

    /// A step for a reply that a handler makes, if it is its turn by then.
    pub async fn step(self: &Arc<Self>, by: Instant) -> Option<Step> {
        let mut place = Waiting {
            of: self,
            place: None,
        };
        let turn = std::future::poll_fn(|cx| place.poll(cx));
        tokio::time::timeout_at(by.into(), turn).await.ok()
    }

    /// What has become of a place: a step, or nothing if there is no crowd any more. `None`: it waits.
    pub(super) fn look(self: &Arc<Self>, place: &Place) -> Option<Option<Step>> {
        match *place.0.lock() {
            Waits::For(_) => None,
            Waits::Granted(bytes) => Some(Some(self.begin(bytes))),
            Waits::Over => Some(None),
        }
    }

    /// Nobody waits at that place any more.
    pub(super) fn leave(self: &Arc<Self>, place: &Arc<Place>) {
        let mut rows = self.rows.lock();
        let waits = matches!(*place.0.lock(), Waits::For(_));
        match waits {
            true => {
                let all = rows.rows.iter_mut();
                all.for_each(|row| row.retain(|one| !Arc::ptr_eq(one, place)));
                self.count(&rows);
            }
            false => {
                drop(rows);
                drop(self.look(place));
            }
        }
    }

    /// There is no crowd any more: nobody needs a step.
    pub(super) fn end(&self) {
        let mut rows = self.rows.lock();
        let all = rows.rows.each_mut().map(std::mem::take);
        self.count(&rows);
        drop(rows);
        for place in all.iter().flatten() {
            place.tell(Waits::Over);
        }
    }

    fn begin(self: &Arc<Self>, bytes: u64) -> Step {
        Step {
            of: self.clone(),
            bytes,
            has_brought: false,
        }
    }

    /// One at least may always go on.
    fn has_room(&self, rows: &Rows) -> bool {
        rows.held == 0 || rows.held + rows.expected <= self.most
    }

    fn count(&self, rows: &Rows) {
        let waiting = rows.rows.iter().map(VecDeque::len).sum();
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// A step holds so many bytes instead of as many as before.
    fn hold(&self, before: u64, now: u64, has_brought: bool) {
        let mut rows = self.rows.lock();
        rows.held = rows.held - before + now;
        if has_brought {
            rows.expected = match now {
                0 => (rows.expected - rows.expected / 8).max(LEAST),
                _ => rows.expected.max(now),
            };
        }
        while self.has_room(&rows) {
            let first = rows.next;
            let row = [first, 1 - first]
                .into_iter()
                .find(|row| !rows.rows[*row].is_empty());
            let Some(row) = row else {
                break;
            };
            rows.next = 1 - row;
            if let Some(place) = rows.rows[row].pop_front() {
                rows.held += rows.expected;
                place.tell(Waits::Granted(rows.expected));
            }
        }
        self.count(&rows);
    }
}

impl Place {
    /// Wakes who waits there.
    fn tell(&self, what: Waits) {
        let before = std::mem::replace(&mut *self.0.lock(), what);
        if let Waits::For(waker) = before {
            waker.wake();
        }
    }

    /// True until it is its turn, or nobody's.
    pub(super) fn waits(&self) -> bool {
        matches!(*self.0.lock(), Waits::For(_))
    }
}

impl Step {
    /// So many bytes are coming, or still to be sent.
    pub fn hold(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.has_brought |= bytes > 0;
        if before != bytes {
            self.of.hold(before, bytes, self.has_brought);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// A handler's place.
struct Waiting<'a> {
    of: &'a Arc<SendSteps>,
    place: Option<Arc<Place>>,
}

impl Waiting<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        loop {
            let Some(place) = &self.place else {
                match self.of.ask(cx.waker(), false) {
                    Asked::Step(step) => return Poll::Ready(step),
                    Asked::Place(place) => self.place = Some(place),
                }
                return Poll::Pending;
            };
            if let Waits::For(waker) = &mut *place.0.lock() {
                waker.clone_from(cx.waker());
                return Poll::Pending;
            }
            let found = self.of.look(place);
            self.place = None;
            // Others may go on without one; it is asked for again.
            if let Some(Some(step)) = found {
                return Poll::Ready(step);
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            self.of.leave(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    const STEP: u64 = MOST_IN_A_CROWD as u64;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn step(steps: &Arc<SendSteps>) -> Step {
        match steps.ask(Waker::noop(), false) {
            Asked::Step(step) => step,
            Asked::Place(_) => panic!("there is room"),
        }
    }

    fn place(steps: &Arc<SendSteps>, has_taken: bool) -> Arc<Place> {
        match steps.ask(Waker::noop(), has_taken) {
            Asked::Step(_) => panic!("there is no room"),
            Asked::Place(place) => place,
        }
    }

    fn turn(steps: &Arc<SendSteps>, place: &Place) -> Option<Step> {
        steps.look(place).flatten()
    }

    #[test]
    fn steps_hold_a_part_together_and_the_others_wait() {
        let steps = SendSteps::new(10 * STEP);
        let mut first = step(&steps);
        first.hold(4 * STEP);
        // What the next brings is not known yet: as much, it is taken.
        let second = step(&steps);
        let waits = place(&steps, false);
        assert!(waits.waits() && steps.waiting() == 1);
        first.hold(3 * STEP);
        assert!(waits.waits());
        first.hold(2 * STEP);
        let third = turn(&steps, &waits).expect("its turn");
        assert_eq!((steps.waiting(), steps.rows.lock().held), (0, 10 * STEP));
        drop((first, second, third));
        assert_eq!(steps.rows.lock().held, 0);
        // A batch may be larger than all of it; then that one is alone, until there were many small ones.
        step(&steps).hold(100 * STEP);
        let alone = step(&steps);
        assert!(place(&steps, false).waits());
        steps.end();
        drop(alone);
        // Those that bring nothing say nothing of it.
        for _ in 0..50 {
            drop(step(&steps));
        }
        let alone = step(&steps);
        assert!(place(&steps, false).waits());
        steps.end();
        drop(alone);
        for _ in 0..50 {
            step(&steps).hold(STEP);
        }
        let _some: Vec<Step> = (0..10).map(|_| step(&steps)).collect();
    }

    #[test]
    fn one_may_always_go_on() {
        let steps = SendSteps::new(0);
        let first = step(&steps);
        let waits = place(&steps, false);
        drop(first);
        let second = turn(&steps, &waits).expect("its turn");
        let waits = place(&steps, false);
        drop(second);
        assert!(turn(&steps, &waits).is_some());
        assert_eq!(steps.rows.lock().held, 0);
    }

    #[test]
    fn who_has_taken_a_step_waits_for_every_second_one_only_among_such() {
        let steps = SendSteps::new(STEP);
        let mut current = step(&steps);
        let others: Vec<_> = (0..100).map(|_| place(&steps, false)).collect();
        let mut served = 0;
        for _ in 0..10 {
            let reader = place(&steps, true);
            let mut turns = 0;
            current = loop {
                drop(current);
                turns += 1;
                if let Some(step) = turn(&steps, &reader) {
                    break step;
                }
                current = turn(&steps, &others[served]).expect("it was the first of them");
                served += 1;
            };
            assert!(turns <= 2, "{turns}");
        }
        assert_eq!(served, 9, "and the others every other one, in their order");
    }

    #[test]
    fn who_goes_gives_its_turn_to_the_next() {
        let steps = SendSteps::new(STEP);
        let first = step(&steps);
        let places: Vec<_> = (0..4).map(|_| place(&steps, false)).collect();
        steps.leave(&places[0]);
        assert_eq!(steps.waiting(), 3);
        drop(first);
        assert!(!places[1].waits());
        steps.leave(&places[1]);
        assert!(!places[2].waits(), "which it had not used");
        assert!(places[3].waits());
        // Without a crowd nobody needs one.
        steps.end();
        assert!(matches!(steps.look(&places[3]), Some(None)));
        drop(turn(&steps, &places[2]));
        assert_eq!((steps.waiting(), steps.rows.lock().held), (0, 0));
    }

    #[test]
    fn who_waits_is_woken_once_and_a_handler_has_its_step_or_gives_up() {
        let steps = SendSteps::new(STEP);
        let first = step(&steps);
        let woken = Arc::new(Woken::default());
        let Asked::Place(waits) = steps.ask(&woken.clone().into(), false) else {
            panic!("there is no room");
        };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let now = Instant::now();
            assert!(steps.step(now).await.is_none(), "it is others' turn");
            assert_eq!(steps.waiting(), 1, "and it does not wait any more");
            let steps_too = steps.clone();
            let far = now + std::time::Duration::from_secs(3600);
            let handler = tokio::spawn(async move { steps_too.step(far).await.is_some() });
            tokio::task::yield_now().await;
            assert_eq!(steps.waiting(), 2);
            drop(first);
            assert_eq!(woken.0.load(Ordering::Relaxed), 1);
            drop(turn(&steps, &waits));
            assert!(handler.await.expect("the handler"));
        });
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!((steps.waiting(), steps.rows.lock().held), (0, 0));
    }
}
