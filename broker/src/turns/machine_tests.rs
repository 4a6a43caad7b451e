//! What the buckets promise, whatever asks and in whatever order.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU8;
use std::task::Waker;

use proptest::prelude::*;

use super::super::tenants::FIRST_SWEEP;
use super::*;

const RATE: f64 = 1000.0;

fn ticket(user: &Arc<str>, estimate: f64, since: Instant) -> Arc<Ticket> {
    Arc::new(Ticket {
        user: user.clone(),
        estimate,
        since,
        waker: Waker::noop().clone(),
        state: AtomicU8::default(),
    })
}

fn guarantee(rate: f64) -> Guarantee {
    Guarantee {
        rate,
        requests: rate / 10.0,
        latency: 0.1,
    }
}

/// Machine, users and time.
struct Played {
    machine: Machine,
    now: Instant,
    begin: Instant,
}

impl Played {
    fn new(guarantees: &[(&str, f64)]) -> Self {
        let begin = Instant::now();
        let mut machine = Machine::new(RATE, begin);
        let guarantees: Vec<_> = guarantees
            .iter()
            .map(|(user, rate)| (Arc::from(*user), guarantee(*rate)))
            .collect();
        machine.set(&guarantees, begin);
        Self {
            machine,
            now: begin,
            begin,
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    fn ask(&mut self, user: &str, cost: f64) -> Option<Class> {
        let user: Arc<str> = user.into();
        let class = self.machine.ask(&user, cost, self.now);
        if class.is_none() {
            self.machine.wait(ticket(&user, cost, self.now));
        }
        class
    }

    fn advance(&mut self) -> Vec<(String, Class)> {
        let granted = self.machine.advance(self.now);
        let granted = granted.into_iter();
        granted
            .map(|(ticket, class)| (ticket.user.to_string(), class))
            .collect()
    }

    fn passed(&self) -> f64 {
        self.now.duration_since(self.begin).as_secs_f64()
    }
}

#[test]
fn who_has_tokens_goes_on_at_once_however_many_others_wait() {
    let mut played = Played::new(&[("ann", 100.0)]);
    for _ in 0..50 {
        played.ask("bob", 10.0);
    }
    assert!(played.machine.waiting() > 40);
    // Sixteen requests in the bucket, and as many that it may owe.
    for number in 0..32 {
        assert_eq!(played.ask("ann", 10.0), Some(Class::Critical), "{number}");
    }
    assert_eq!(
        played.ask("ann", 10.0),
        None,
        "what is guaranteed is used up"
    );
    // Ten milliseconds bring one token to ann, and she owes less than she may: she is before those who wait longer.
    played.pass(10);
    assert_eq!(played.advance()[0], ("ann".to_owned(), Class::Critical));
}

#[test]
fn others_have_what_is_not_guaranteed_and_what_is_not_used_of_that() {
    for (uses, wanted) in [(true, 700.0), (false, 1000.0)] {
        let mut played = Played::new(&[("ann", 300.0)]);
        // Nobody wants anything for a while: the bucket is full and so is what may be spared.
        played.pass(1000);
        let begun = played.passed();
        let mut used = 0.0;
        for _ in 0..10_000 {
            played.pass(1);
            if uses {
                played.ask("ann", 0.3);
            }
            if played.machine.waiting() < 10 {
                played.ask("bob", 5.0);
            }
            used += 5.0 * played.advance().len() as f64;
        }
        let rate = used / (played.passed() - begun);
        assert!(
            (wanted * 0.98..wanted * 1.01).contains(&rate),
            "{rate} of {wanted}"
        );
    }
}

#[test]
fn those_who_wait_get_as_much_as_each_other_however_much_they_ask() {
    let mut played = Played::new(&[("ann", 500.0)]);
    let mut used = HashMap::new();
    for _ in 0..200 {
        played.ask("many", 1.0);
    }
    for _ in 0..4000 {
        played.pass(1);
        for (user, cost) in [("large", 20.0), ("small", 1.0)] {
            let waits = played.machine.tenants.get(user);
            if waits.is_none_or(|tenant| tenant.waiting.is_empty()) {
                played.ask(user, cost);
            }
        }
        played.ask("many", 1.0);
        for (user, _) in played.advance() {
            let cost = if user == "large" { 20.0 } else { 1.0 };
            *used.entry(user).or_insert(0.0) += cost;
        }
    }
    // Four seconds of 1,000 tokens in three parts, less than ann's bucket took at first.
    for (user, tokens) in &used {
        assert!((1250.0..1400.0).contains(tokens), "{user}: {used:?}");
    }
    assert_eq!(used.len(), 3);
}

#[test]
fn who_comes_after_a_pause_is_not_before_all_others_for_ever() {
    let mut played = Played::new(&[("ann", 500.0)]);
    for _ in 0..1000 {
        played.ask("bob", 1.0);
        played.pass(1);
        played.advance();
    }
    // bob has used much, carl nothing yet.
    for _ in 0..100 {
        played.ask("bob", 10.0);
        played.ask("carl", 10.0);
    }
    let mut granted = Vec::new();
    for _ in 0..400 {
        played.pass(1);
        granted.extend(played.advance());
    }
    let of = |name: &str| granted.iter().filter(|(user, _)| user == name).count();
    assert!(
        of("bob") >= 15 && of("carl").abs_diff(of("bob")) < 4,
        "{granted:?}"
    );
}

#[test]
fn what_was_taken_for_too_much_comes_back_and_a_debt_is_bounded() {
    let mut played = Played::new(&[("ann", 500.0)]);
    played.pass(1000);
    let bob: Arc<str> = "bob".into();
    assert_eq!(played.ask("bob", 400.0), Some(Class::BestEffort));
    assert_eq!(played.ask("carl", 1.0), Some(Class::BestEffort));
    assert_eq!(played.ask("bob", 1.0), None, "it owes what its turn costs");
    played.machine.settle(&bob, Class::BestEffort, -399.0);
    assert_eq!(played.advance(), [("bob".to_owned(), Class::BestEffort)]);
    // A thousand seconds of work in one request are its own, and it waits for sixty of them.
    played.machine.settle(&bob, Class::BestEffort, 1e6);
    played.ask("carl", 1.0);
    played.pass(1);
    assert_eq!(played.advance(), [("carl".to_owned(), Class::BestEffort)]);
    assert_eq!(played.ask("bob", 1.0), None);
    played.pass(59_000);
    assert_eq!(played.advance(), []);
    played.pass(1001);
    assert_eq!(played.advance(), [("bob".to_owned(), Class::BestEffort)]);
    assert_eq!(played.machine.pause(), None);
}

/// How many turns of one token a user has in two seconds that asks whenever it does not wait, and the longest that one waits in ms,
/// beside what `other` does each millisecond.
fn beside(mut other: impl FnMut(&mut Played, &[(Arc<Ticket>, Class)])) -> (u32, u64) {
    // A tenth is left: a token in ten milliseconds, and ann uses all of hers.
    let mut played = Played::new(&[("ann", 900.0)]);
    let (mut turns, mut waits, mut longest) = (0, None, 0_u64);
    for ms in 0..2000_u64 {
        played.pass(1);
        played.ask("ann", 0.9);
        let granted = played.machine.advance(played.now);
        other(&mut played, &granted);
        if granted.iter().any(|(ticket, _)| &*ticket.user == "vic") {
            longest = longest.max(ms - waits.take().expect("it waits"));
            turns += 1;
        }
        if waits.is_none() {
            match played.ask("vic", 1.0) {
                Some(_) => turns += 1,
                None => waits = Some(ms),
            }
        }
    }
    (turns, longest)
}

#[test]
fn who_owes_nothing_gets_its_part_whatever_others_owe() {
    let (alone, _) = beside(|_, _| {});
    assert!(alone >= 200, "{alone}");
    // Each of many connections has had a turn that cost far more than it was taken for, and wants another one.
    let mut connections = 60;
    let (turns, longest) = beside(|played, granted| {
        let mal: Arc<str> = "mal".into();
        for _ in granted.iter().filter(|(ticket, _)| ticket.user == mal) {
            played.machine.settle(&mal, Class::BestEffort, 5000.0);
            connections += 1;
        }
        for _ in 0..std::mem::take(&mut connections) {
            if played.ask("mal", 1.0).is_some() {
                played.machine.settle(&mal, Class::BestEffort, 5000.0);
            }
        }
    });
    assert!(turns >= 95, "{turns} turns beside debts");
    // Two pieces of two tokens, which come in forty milliseconds.
    assert!(longest <= 41, "{longest} ms beside debts");
}

#[test]
fn what_a_turn_costs_above_a_piece_is_its_own_debt() {
    let mut idle = 60;
    let (turns, longest) = beside(|played, granted| {
        let mal = granted.iter().filter(|(ticket, _)| &*ticket.user == "mal");
        idle += mal.count();
        for _ in 0..std::mem::take(&mut idle) {
            idle += usize::from(played.ask("mal", 5000.0).is_some());
        }
    });
    assert!(turns >= 95 && longest <= 41, "{turns}, {longest} ms");
}

#[test]
fn turns_that_are_let_go_bring_nobody_before_others() {
    for held in [0, 1, 30, 300] {
        let mut idle = 40;
        let mut holds: VecDeque<u64> = VecDeque::new();
        let mut ms = 0;
        let (turns, longest) = beside(|played, granted| {
            let mal: Arc<str> = "mal".into();
            ms += 1;
            let got = granted.iter().filter(|(ticket, _)| ticket.user == mal);
            holds.extend(got.map(|_| ms + held));
            while holds.front().is_some_and(|until| *until <= ms) {
                holds.pop_front();
                // All but what a request costs.
                played.machine.settle(&mal, Class::BestEffort, 1.0 - 300.0);
                idle += 1;
            }
            for _ in 0..std::mem::take(&mut idle) {
                if played.ask("mal", 300.0).is_some() {
                    holds.push_back(ms + held);
                }
            }
        });
        assert!(turns >= 90, "{turns} turns beside some held {held} ms");
        assert!(longest <= 60, "{longest} ms beside some held {held} ms");
    }
}

#[test]
fn what_a_user_with_an_objective_did_not_need_is_there_for_others() {
    let mut played = Played::new(&[("ann", 900.0)]);
    played.pass(1000);
    assert_eq!(played.ask("ann", 900.0), Some(Class::Critical));
    // What comes goes to ann's bucket, and others have used up theirs.
    played.pass(1000);
    while played.ask("vic", 1.0).is_some() {}
    assert_eq!(played.advance(), []);
    let ann: Arc<str> = "ann".into();
    played.machine.settle(&ann, Class::Critical, -900.0);
    assert_eq!(played.advance(), [("vic".to_owned(), Class::BestEffort)]);
}

#[test]
fn a_bucket_holds_no_more_than_comes_in_some_seconds() {
    let mut played = Played::new(&[]);
    let few = Guarantee {
        rate: 100.0,
        requests: 1e-300,
        latency: 0.1,
    };
    played.machine.set(&[("ann".into(), few)], played.now);
    played.pass(1_000_000);
    let turns = (0..1000).take_while(|_| played.ask("ann", 10.0) == Some(Class::Critical));
    // As much may be owed.
    assert_eq!(turns.count() as f64, 2.0 * MOST_BURST * 10.0);
}

#[test]
fn without_objectives_nobody_waits_and_who_leaves_is_not_waited_for() {
    let mut played = Played::new(&[("ann", 500.0)]);
    let bob: Arc<str> = "bob".into();
    for _ in 0..40 {
        played.ask("bob", 100.0);
    }
    let gone = ticket(&bob, 1.0, played.now);
    played.machine.wait(gone.clone());
    let waiting = played.machine.waiting();
    assert!(played.machine.leave(&gone) && !played.machine.leave(&gone));
    assert_eq!(played.machine.waiting(), waiting - 1);
    played.machine.set(&[], played.now);
    assert_eq!(played.advance().len(), waiting - 1);
}

#[test]
fn objectives_that_exceed_the_broker_get_their_part_and_leave_a_tenth() {
    let mut played = Played::new(&[("ann", 3000.0), ("bob", 1500.0)]);
    assert!(played.machine.guaranteed() > 4.4);
    let mut used = HashMap::new();
    played.pass(1000);
    for _ in 0..20_000 {
        played.pass(1);
        for user in ["ann", "bob", "carl"] {
            let waits = played.machine.tenants.get(user);
            let waits = waits.is_some_and(|tenant| !tenant.waiting.is_empty());
            if !waits && played.ask(user, 5.0).is_some() {
                *used.entry(user.to_owned()).or_insert(0.0) += 5.0;
            }
        }
        for (user, _) in played.advance() {
            *used.entry(user).or_insert(0.0) += 5.0;
        }
    }
    let rate = |user: &str| used[user] / 20.0;
    let all = rate("ann") + rate("bob") + rate("carl");
    assert!((980.0..1060.0).contains(&all), "{used:?}");
    assert!(
        rate("ann") > 580.0 && rate("bob") > 290.0 && rate("carl") > 30.0,
        "{used:?}"
    );
}

#[test]
fn tenants_that_are_ahead_of_nobody_are_forgotten() {
    let mut played = Played::new(&[("ann", 500.0)]);
    for number in 0..10_000 {
        played.pass(10);
        played.advance();
        played.ask(&format!("user-{number}"), 1.0);
    }
    assert!(played.machine.tenants.all().count() <= 2 * FIRST_SWEEP);
    // But not those that owe something.
    let bob: Arc<str> = "bob".into();
    played.machine.owe(&bob, 5000.0);
    for number in 0..1000 {
        let other = format!("other-{number}").into();
        played.machine.tenants.enter(&other, 0.0, |_| ());
    }
    assert!(played.machine.tenants.owes(&bob));
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize, u32),
    Pass(u64),
    Settle(usize, i32),
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..5_usize, 1..60_u32).prop_map(|(user, cost)| Step::Ask(user, cost)),
        3 => (0..40_u64).prop_map(Step::Pass),
        1 => (0..5_usize, -20..60_i32).prop_map(|(user, more)| Step::Settle(user, more)),
        1 => (0..5_usize).prop_map(Step::Leave),
    ]
}

/// What all tenants owe.
fn owed(machine: &Machine) -> f64 {
    machine.tenants.all().map(|tenant| tenant.owes).sum()
}

proptest! {
    /// Users 0 and 1 have objectives, 2 to 4 none, and they do what they like.
    #[test]
    fn rules_hold_whatever_is_asked(steps in proptest::collection::vec(step(), 1..300)) {
        let users: Vec<Arc<str>> = (0..5).map(|number| Arc::from(format!("user-{number}"))).collect();
        let mut played = Played::new(&[("user-0", 100.0), ("user-1", 400.0)]);
        // Tokens that were there at the beginning, and what was taken.
        let buckets: f64 = played.machine.critical.values().map(|one| one.tokens).sum();
        let mut taken = 0.0;
        let mut waiting: Vec<Arc<Ticket>> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(user, cost) => {
                    let (user, cost) = (&users[user], f64::from(cost));
                    let own = played.machine.critical.get(user);
                    // As it is once buckets are filled.
                    let passed = played.now.duration_since(played.machine.at).as_secs_f64();
                    let had = own.map(|own| (own.tokens + passed * own.rate).min(own.burst) > -own.burst);
                    let class = played.machine.ask(user, cost, played.now);
                    match class {
                        Some(_) => taken += cost,
                        None => {
                            let ticket = ticket(user, cost, played.now);
                            waiting.push(ticket.clone());
                            played.machine.wait(ticket);
                        }
                    }
                    if had == Some(true) {
                        prop_assert_eq!(class, Some(Class::Critical), "it has tokens and waits");
                    } else if class.is_some() {
                        prop_assert!(class == Some(Class::BestEffort));
                    }
                }
                Step::Pass(ms) => played.pass(ms),
                Step::Settle(user, more) => {
                    let class = match user {
                        0 | 1 => Class::Critical,
                        _ => Class::BestEffort,
                    };
                    // No more is given back than was taken.
                    let more = f64::from(more).max(-taken);
                    let user = &users[user];
                    let of = |machine: &Machine| {
                        let own = machine.critical.get(user).map_or(0.0, |own| own.tokens);
                        own + machine.spare - owed(machine)
                    };
                    let before = of(&played.machine);
                    played.machine.settle(user, class, more);
                    // What a bucket has no room for is nobody's.
                    taken += before - of(&played.machine);
                }
                Step::Leave(at) if at < waiting.len() => {
                    let ticket = waiting.remove(at);
                    prop_assert!(played.machine.leave(&ticket));
                }
                Step::Leave(_) => {}
            }
            let granted = played.machine.advance(played.now);
            taken += granted.iter().map(|(ticket, _)| ticket.estimate).sum::<f64>();
            waiting.retain(|one| !granted.iter().any(|(ticket, _)| Arc::ptr_eq(one, ticket)));
            prop_assert_eq!(played.machine.waiting(), waiting.len());
            // Nobody waits who has tokens, and nobody at all while some can be spared.
            for ticket in &waiting {
                let own = played.machine.critical.get(&ticket.user);
                prop_assert!(own.is_none_or(|own| !own.may_go()), "it has tokens and waits");
            }
            prop_assert!(waiting.is_empty() || played.machine.spare <= 0.0, "others starve");
            // What is owed is owed by a user, and others wait for no more than a piece of it.
            prop_assert!(played.machine.spare >= -played.machine.piece() - 1e-9, "all owe");
            played.machine.tenants.check();
            // No tokens come from nowhere: what was taken came at the rate, was there at first, or is owed.
            let own: f64 = played.machine.critical.values().map(|one| (-one.tokens).max(0.0)).sum();
            let owed = own + (-played.machine.spare).max(0.0) + owed(&played.machine);
            let most = buckets + RATE * played.passed() + owed;
            prop_assert!(taken <= most + 1e-6, "{} of {}", taken, most);
        }
    }
}
