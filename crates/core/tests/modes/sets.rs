//! Goal: a set of locks is granted when each of its locks would be, a set of one is a lock, and no
//! set waits for another in a circle.
//!
//! Method: random sets of one lock and more run on the rules and on one model of each lock; then
//! clients wait for random sets until all of them had theirs.

use std::collections::BTreeSet;
use std::time::Duration;

use keylatch_core::entry::{Entry as _, Found};
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, FencingToken, LockCommand, LockLoss, LockName,
    LockReply, LockState, Moment, RenewReply, TokenHash, Ttl,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::oracle::{Member, Oracle};
use crate::properties::{is_its_snapshot, limit, token_hash, word};

const LOCKS: usize = 4;
const TTL_MILLIS: u64 = 1000;
const WAIT_MILLIS: u64 = 700;

#[derive(Debug, Clone)]
enum Step {
    Acquire { token: u8, most: u8, max_ahead: Option<u8>, waits: bool },
    Renew { token: u8 },
    Release { token: u8 },
    Withdraw { token: u8 },
}

/// Which locks, how much later, and what.
fn step() -> impl Strategy<Value = (Vec<usize>, u64, Step)> {
    let token = 0_u8..6;
    let most = prop_oneof![3 => Just(1_u8), 1 => Just(0), 2 => Just(2)];
    let max_ahead = prop::option::weighted(0.3, 0_u8..3);
    let acquire = (token.clone(), most, max_ahead, any::<bool>());
    let acquire = acquire.prop_map(|(token, most, max_ahead, waits)| Step::Acquire {
        token,
        most,
        max_ahead,
        waits,
    });
    let step = prop_oneof![
        7 => acquire,
        1 => token.clone().prop_map(|token| Step::Renew { token }),
        2 => token.clone().prop_map(|token| Step::Release { token }),
        1 => token.prop_map(|token| Step::Withdraw { token }),
    ];
    let locks = subsequence((0..LOCKS).collect::<Vec<_>>(), 1..=3).prop_shuffle();
    (locks, prop_oneof![3 => Just(0_u64), 2 => 1_u64..400], step)
}

fn name(lock: usize) -> LockName {
    LockName::parse(&format!("lock {lock}")).expect("a name")
}

/// Locks by the rules.
#[derive(Default)]
struct Locks {
    states: [LockState; LOCKS],
    last: [FencingToken; LOCKS],
    now: u64,
}

impl Locks {
    fn moment(&self, lock: usize) -> Moment {
        let now = Duration::from_millis(self.now);
        Moment { now, last_fencing_token: self.last[lock], ..Moment::default() }
    }

    fn live(&self, lock: usize) -> LockState {
        self.states[lock].live(&self.moment(lock))
    }

    fn put(&mut self, lock: usize, state: LockState) {
        self.last[lock] = self.last[lock].max(state.fencing_token().unwrap_or_default());
        self.states[lock] = state;
    }

    fn run(&mut self, locks: &[usize], command: &LockCommand) -> LockReply {
        let names: Vec<_> = locks.iter().map(|lock| name(*lock)).collect();
        let entries = locks.iter().map(|lock| (self.states[*lock].clone(), self.moment(*lock)));
        let mut entries: Vec<_> = entries.collect();
        let found = names.iter().zip(&mut entries);
        let found = found.map(|(key, (state, moment))| Found { key, state, moment: *moment });
        let reply = LockState::step(&mut found.collect::<Vec<_>>(), command);
        for (lock, (state, _)) in locks.iter().zip(entries) {
            self.put(*lock, state);
        }
        reply
    }

    /// What the rules say to a step, in a word.
    fn take(&mut self, locks: &[usize], step: &Step, attempt: u64) -> String {
        let command = match *step {
            Step::Acquire { token, most, max_ahead, waits } => {
                let max_ahead = max_ahead.map(u64::from);
                let command = acquire(token, most, waits, attempt);
                LockCommand::Acquire(AcquireCommand { max_ahead, ..command })
            }
            Step::Renew { token } => {
                LockCommand::Renew { token: token_hash(token), ttl: Some(ttl()) }
            }
            Step::Release { token } => {
                LockCommand::Release { token: token_hash(token), entry: None }
            }
            Step::Withdraw { token } => {
                LockCommand::Withdraw { token: token_hash(token), attempt: before(attempt) }
            }
        };
        match self.run(locks, &command) {
            LockReply::Acquire(reply) => named(&reply),
            LockReply::Renew(RenewReply::Renewed(leases)) => {
                assert_eq!(leases.len(), locks.len());
                "renewed".to_owned()
            }
            LockReply::Renew(RenewReply::Lost(lost)) => {
                assert!(lost.iter().all(|it| !matches!(it.loss, LockLoss::Broken(_))));
                format!("lost {}", lost.len())
            }
            LockReply::Release(replies) => {
                assert_eq!(replies.len(), locks.len());
                let lost = replies.iter().filter(|(reply, _)| reply.loss().is_some());
                format!("lost {}", lost.count())
            }
            LockReply::Withdraw => "withdrawn".to_owned(),
            other => panic!("{other:?}"),
        }
    }
}

fn ttl() -> Ttl {
    Ttl::from_millis(TTL_MILLIS).expect("a TTL")
}

/// The attempt of the last step.
fn before(attempt: u64) -> Attempt {
    Attempt::new(attempt.saturating_sub(1))
}

fn acquire(token: u8, most: u8, waits: bool, attempt: u64) -> AcquireCommand {
    let queue = waits.then_some(Duration::from_millis(WAIT_MILLIS));
    let command = AcquireCommand::new(token_hash(token), ttl(), Attempt::new(attempt));
    AcquireCommand { queue, limit: limit(most), ..command }
}

/// The reply in a word, with the lock that is in the way.
fn named(reply: &AcquireReply) -> String {
    match reply {
        AcquireReply::Busy(why) | AcquireReply::Crowded(why) | AcquireReply::NotAlone(why) => {
            format!("{} {}", word(reply), why.name.as_str())
        }
        _ => word(reply).to_owned(),
    }
}

/// The model: a lock each, and a set is what all of its locks say.
#[derive(Default)]
struct Models {
    locks: [Oracle; LOCKS],
}

impl Models {
    fn acquire(
        &mut self,
        locks: &[usize],
        wanted: &Member,
        max_ahead: Option<usize>,
        waits_until: Option<u64>,
    ) -> String {
        let said_of_set = |it: &mut Self| it.acquire_all(locks, wanted, max_ahead, waits_until);
        let [lock] = locks else { return said_of_set(self) };
        let mut alone = copy(&self.locks[*lock]);
        let said = alone.acquire(wanted.clone(), max_ahead, waits_until);
        let said_of_set = said_of_set(self);
        // The model of sets is that of one lock, for a set of one.
        assert_eq!(said_of_set.split(" lock").next(), Some(said));
        assert_eq!(tokens(&self.locks[*lock]), tokens(&alone));
        self.locks[*lock] = alone;
        said_of_set
    }

    fn acquire_all(
        &mut self,
        locks: &[usize],
        wanted: &Member,
        max_ahead: Option<usize>,
        waits_until: Option<u64>,
    ) -> String {
        let mut tried: Vec<Oracle> = locks.iter().map(|lock| copy(&self.locks[*lock])).collect();
        let each = tried.iter_mut();
        let said: Vec<_> = each.map(|it| it.acquire(wanted.clone(), max_ahead, None)).collect();
        let first = |what| {
            let place = said.iter().position(|said| *said == what)?;
            Some(format!("{what} {}", name(locks[place]).as_str()))
        };
        if let Some(refused) = first("not alone").or_else(|| first("crowded")) {
            return refused;
        }
        let Some(busy) = first("busy") else {
            for (lock, after) in locks.iter().zip(tried) {
                self.locks[*lock] = after;
            }
            let is_new = said.contains(&"granted");
            return if is_new { "granted" } else { "repeated" }.to_owned();
        };
        let Some(end) = waits_until else { return busy };
        let has = |members: &[Member]| members.iter().any(|it| it.token == wanted.token);
        if locks.iter().any(|lock| has(&self.locks[*lock].holders)) {
            return busy.replace("busy", "not alone");
        }
        let keeps = locks.iter().all(|lock| has(&self.locks[*lock].line));
        for lock in locks {
            let line = &mut self.locks[*lock].line;
            let waiter = Member { end, ..wanted.clone() };
            match line.iter().position(|it| it.token == wanted.token).filter(|_| keeps) {
                Some(place) => line[place] = Member { joined: line[place].joined, ..waiter },
                None => {
                    line.retain(|it| it.token != wanted.token);
                    line.push(waiter);
                }
            }
        }
        busy
    }

    fn renew(&mut self, locks: &[usize], token: u8, end: u64) -> String {
        let mine = |oracle: &Oracle| oracle.holders.iter().position(|it| it.token == token);
        let lost = locks.iter().filter(|lock| mine(&self.locks[**lock]).is_none()).count();
        if lost > 0 {
            return format!("lost {lost}");
        }
        for lock in locks {
            let oracle = &mut self.locks[*lock];
            oracle.holders.iter_mut().filter(|it| it.token == token).for_each(|it| it.end = end);
        }
        "renewed".to_owned()
    }

    fn release(&mut self, locks: &[usize], token: u8) -> String {
        let said = locks.iter().map(|lock| self.locks[*lock].release(token, None));
        format!("lost {}", said.filter(|said| *said != "released").count())
    }
}

/// Who holds a lock, and who waits for it.
fn tokens(oracle: &Oracle) -> [Vec<u8>; 2] {
    [&oracle.holders, &oracle.line].map(|all| all.iter().map(|it| it.token).collect())
}

fn copy(oracle: &Oracle) -> Oracle {
    Oracle { holders: oracle.holders.clone(), line: oracle.line.clone() }
}

/// The locks of a set may have one bucket, and so the same last fencing token.
#[test]
fn fencing_tokens_of_one_step_rise_in_the_order_of_the_names() {
    let mut rules = Locks { now: 1_000_000, ..Locks::default() };
    let step = LockCommand::Acquire(acquire(1, 1, false, 1));
    let LockReply::Acquire(AcquireReply::Granted(leases)) = rules.run(&[2, 0, 1], &step) else {
        panic!("not granted")
    };
    assert!(leases.is_sorted_by(|one, next| one.fencing_token < next.fencing_token), "{leases:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn sets_do_what_the_model_of_their_locks_does(steps in vec(step(), 1..60)) {
        let (mut rules, mut models) = (Locks { now: 1_000_000, ..Locks::default() }, Models::default());
        for (number, (locks, later, step)) in steps.iter().enumerate() {
            rules.now += later;
            let now = rules.now;
            models.locks.iter_mut().for_each(|oracle| oracle.expire(now));
            let before: Vec<_> = (0..LOCKS).map(|lock| rules.live(lock)).collect();
            let found = rules.take(locks, step, number as u64 + 1);
            let expected = match *step {
                Step::Acquire { token, most, max_ahead, waits } => {
                    let most = limit(most).holders();
                    let (names, end) = (BTreeSet::from([0]), now + TTL_MILLIS);
                    let wanted = Member { token, most, joined: now, end, names, broken: false };
                    let until = waits.then_some(now + WAIT_MILLIS);
                    models.acquire(locks, &wanted, max_ahead.map(usize::from), until)
                }
                Step::Renew { token } => models.renew(locks, token, now + TTL_MILLIS),
                Step::Release { token } => models.release(locks, token),
                Step::Withdraw { .. } => {
                    // What a withdrawal takes depends on attempts, which the model does not know.
                    for (lock, oracle) in models.locks.iter_mut().enumerate() {
                        let state = rules.live(lock);
                        let stays = |it: &Member, tokens: &[TokenHash]| tokens.contains(&token_hash(it.token));
                        let holders: Vec<_> = state.holders().map(|it| it.token).collect();
                        let line: Vec<_> = state.queue().entries().iter().map(|it| it.token).collect();
                        oracle.holders.retain(|it| stays(it, &holders));
                        oracle.line.retain(|it| stays(it, &line));
                    }
                    "withdrawn".to_owned()
                }
            };
            prop_assert_eq!(&found, &expected, "step {}: {:?} on {:?}", number, step, locks);
            let is_refused = match step {
                Step::Acquire { waits, .. } => {
                    ["not alone", "crowded"].iter().any(|word| found.starts_with(word))
                        || found.starts_with("busy") && !waits
                }
                Step::Renew { .. } => found.starts_with("lost"),
                Step::Release { .. } => found == format!("lost {}", locks.len()),
                Step::Withdraw { .. } => false,
            };
            rules.states.iter().for_each(is_its_snapshot);
            for (lock, before) in before.iter().enumerate() {
                prop_assert!(!is_refused || *before == rules.live(lock), "step {}: lock {} changed", number, lock);
                let (state, oracle) = (rules.live(lock), &models.locks[lock]);
                let mut holders: Vec<_> = state.holders().map(|it| it.token).collect();
                let mut held: Vec<_> = oracle.holders.iter().map(|it| token_hash(it.token)).collect();
                holders.sort_unstable_by_key(|token| *token.as_bytes());
                held.sort_unstable_by_key(|token| *token.as_bytes());
                prop_assert_eq!(holders, held, "step {}: lock {}", number, lock);
                let joined = |millis| Duration::from_millis(millis);
                let line: Vec<_> = state.queue().entries().iter().map(|it| (it.token, it.joined)).collect();
                let waiting: Vec<_> =
                    oracle.line.iter().map(|it| (token_hash(it.token), joined(it.joined))).collect();
                prop_assert_eq!(line, waiting, "step {}: line {}", number, lock);
                for holder in state.holders() {
                    let is_new = before.holders().all(|it| it.fencing_token != holder.fencing_token);
                    let largest = before.fencing_token().unwrap_or_default();
                    prop_assert!(!is_new || holder.fencing_token > largest);
                }
            }
        }
    }

    /// Sets that all wait, each asking again in any order: whenever all locks are free, some set is
    /// served.
    #[test]
    fn no_sets_wait_for_each_other(
        sets in vec((subsequence((0..LOCKS).collect::<Vec<_>>(), 1..=3), 0_u8..3), 2..30),
        order in vec(any::<prop::sample::Index>(), 400),
    ) {
        let mut rules = Locks { now: 1_000_000, ..Locks::default() };
        let mut waiting: BTreeSet<usize> = (0..sets.len()).collect();
        let mut asked = 0_u64;
        let mut order = order.into_iter().cycle();
        while !waiting.is_empty() {
            // Everyone asks, in an order of chance, and those that are served release.
            let mut round: Vec<_> = waiting.iter().copied().collect();
            let mut served = Vec::new();
            while !round.is_empty() {
                let next = order.next().map_or(0, |at| at.index(round.len()));
                let number = round.swap_remove(next);
                let (locks, most) = &sets[number];
                let token = u8::try_from(number).expect("a small number");
                asked += 1;
                let step = Step::Acquire { token, most: *most, max_ahead: None, waits: true };
                if rules.take(locks, &step, asked) == "granted" {
                    served.push(number);
                }
            }
            prop_assert!(!served.is_empty(), "all wait, and no lock is held: {waiting:?}");
            for number in served {
                waiting.remove(&number);
                let token = u8::try_from(number).expect("a small number");
                rules.take(&sets[number].0, &Step::Release { token }, 0);
            }
        }
    }
}
