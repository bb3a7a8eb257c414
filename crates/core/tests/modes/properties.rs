//! Goal: the rules and the model agree on every answer and on the holders, and what the documents
//! promise of a lock holds after every step.
//!
//! Method: proptest makes random histories of creates, releases, breaks and pauses on one lock.
//! Both sides run them, and a failing history shrinks to a short one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keylatch_core::entry::Entry as _;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, BreakCommand, BreakReply, EntryName, FencingToken,
    Limit, LockCommand, LockLoss, LockName, LockReply, LockState, Moment, Owner, Reason,
    ReleaseReply, RenewReply, Slots, TokenHash, Ttl,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::oracle::{Member, Oracle};

const TTL_MILLIS: u64 = 1000;
const WAIT_MILLIS: u64 = 700;

#[derive(Debug, Clone)]
enum Step {
    Acquire { token: u8, limit: u8, name: u8, max_ahead: Option<u8>, waits: bool },
    Renew { token: u8 },
    Release { token: u8, name: Option<u8> },
    Break { token: u8, grace: Option<u64> },
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let token = 0_u8..5;
    // 0 stands for any number; 1 for a holder alone.
    let acquire = (token.clone(), prop_oneof![2 => Just(1_u8), 3 => Just(0), 3 => 2_u8..4]);
    let waits = (prop::option::weighted(0.3, 0_u8..3), any::<bool>());
    let acquire = (acquire, prop_oneof![5 => Just(0_u8), 1 => 1_u8..3], waits);
    let acquire = acquire.prop_map(|((token, limit), name, (max_ahead, waits))| Step::Acquire {
        token,
        limit,
        name,
        max_ahead,
        waits,
    });
    let release = (token.clone(), prop::option::of(0_u8..3));
    let release = release.prop_map(|(token, name)| Step::Release { token, name });
    let broken = (token.clone(), prop::option::of(0_u64..900));
    let broken = broken.prop_map(|(token, grace)| Step::Break { token, grace });
    let step = prop_oneof![
        6 => acquire,
        1 => token.prop_map(|token| Step::Renew { token }),
        2 => release,
        1 => broken,
    ];
    (prop_oneof![3 => Just(0_u64), 2 => 1_u64..400], step)
}

/// The rules and the model side by side.
struct Pair {
    name: LockName,
    state: LockState,
    oracle: Oracle,
    now: u64,
    last: FencingToken,
    attempts: u64,
    /// The limit and the slot with which each grant was made, and how it is known: by token and
    /// fencing token.
    grants: BTreeMap<(TokenHashKey, FencingToken), (Limit, u32)>,
}

type TokenHashKey = [u8; 32];

pub(crate) fn token_hash(token: u8) -> TokenHash {
    TokenHash::from_bytes([token; 32])
}

/// Asserts that a lock is what its snapshot is read to.
pub(crate) fn is_its_snapshot(state: &LockState) {
    let bytes = state.encode().expect("a state of the rules can be written");
    assert_eq!(LockState::decode(&bytes).as_ref(), Ok(state), "its snapshot");
}

/// What became of an acquire, as the model says it.
pub(crate) fn word(reply: &AcquireReply) -> &'static str {
    match reply {
        AcquireReply::Granted(_) => "granted",
        AcquireReply::Repeated(_) => "repeated",
        AcquireReply::Busy(_) => "busy",
        AcquireReply::Crowded(_) => "crowded",
        AcquireReply::NotAlone(_) => "not alone",
        AcquireReply::WaitEnded(_) => "ended",
        AcquireReply::Full => "full",
    }
}

pub(crate) fn limit(number: u8) -> Limit {
    match number {
        0 => Limit::Shared,
        1 => Limit::Exclusive,
        slots => Limit::Counted(Slots::new(slots.into()).expect("a number of slots")),
    }
}

fn entry(name: u8) -> Option<EntryName> {
    (name > 0).then(|| EntryName::parse(&format!("entry {name}")).expect("a name"))
}

impl Pair {
    fn new() -> Self {
        Self {
            name: LockName::parse("lock").expect("a name"),
            state: LockState::default(),
            oracle: Oracle::default(),
            now: 1_000_000,
            last: FencingToken::NONE,
            attempts: 0,
            grants: BTreeMap::new(),
        }
    }

    fn moment(&self) -> Moment {
        let now = Duration::from_millis(self.now);
        Moment { now, last_fencing_token: self.last, ..Moment::default() }
    }

    fn live(&self) -> LockState {
        self.state.live(&self.moment())
    }

    fn run(&mut self, command: &LockCommand) -> LockReply {
        let (state, reply) = self.state.apply(&self.name, command, &self.moment());
        self.last = self.last.max(state.fencing_token().unwrap_or_default());
        self.state = state;
        reply
    }

    /// The answer of both to a step.
    fn answers(&mut self, step: &Step) -> (&'static str, &'static str) {
        match *step {
            Step::Acquire { token, limit: number, name, max_ahead, waits } => {
                let mut command = self.acquire(token, number, name, waits);
                command.max_ahead = max_ahead.map(u64::from);
                let command = LockCommand::Acquire(command);
                let (most, names) = (limit(number).holders(), BTreeSet::from([name]));
                let (joined, end) = (self.now, self.now + TTL_MILLIS);
                let wanted = Member { token, most, joined, end, names, broken: false };
                let until = waits.then_some(self.now + WAIT_MILLIS);
                let expected = self.oracle.acquire(wanted, max_ahead.map(usize::from), until);
                let LockReply::Acquire(reply) = self.run(&command) else { unreachable!() };
                self.check_repeat(&command, &reply);
                (expected, word(&reply))
            }
            Step::Renew { token } => self.renew(token),
            Step::Release { token, name } => {
                let command =
                    LockCommand::Release { token: token_hash(token), entry: name.and_then(entry) };
                // Without a name all entries go, and the unnamed one is not left by a name.
                let expected = match name {
                    Some(0) | None => self.oracle.release(token, None),
                    name => self.oracle.release(token, name),
                };
                let LockReply::Release(replies) = self.run(&command) else { unreachable!() };
                let found = match &replies[0].0 {
                    ReleaseReply::Released => "released",
                    ReleaseReply::Entered(_) => "entered",
                    ReleaseReply::NotHeld => "not held",
                    ReleaseReply::Mismatch => "mismatch",
                };
                (expected, found)
            }
            Step::Break { token, grace } => self.break_lease(token, grace),
        }
    }

    fn acquire(&mut self, token: u8, number: u8, name: u8, waits: bool) -> AcquireCommand {
        self.attempts += 1;
        let ttl = Ttl::from_millis(TTL_MILLIS).expect("a TTL");
        let attempt = Attempt::new(self.attempts);
        AcquireCommand {
            queue: waits.then_some(Duration::from_millis(WAIT_MILLIS)),
            limit: limit(number),
            entry: entry(name),
            owner: Owner::parse(if token == 0 { "Zoë, line 7" } else { "" }).expect("a label"),
            ..AcquireCommand::new(token_hash(token), ttl, attempt)
        }
    }

    /// What was granted is not granted again, and a repeat changes nothing.
    fn check_repeat(&mut self, command: &LockCommand, reply: &AcquireReply) {
        if let AcquireReply::Granted(leases) | AcquireReply::Repeated(leases) = reply {
            let before = self.state.clone();
            let again = self.run(command);
            let repeated = AcquireReply::Repeated(leases.clone());
            assert_eq!(again, LockReply::Acquire(repeated), "a repeat of {command:?}");
            assert_eq!(self.state, before, "a repeat of {command:?}");
        }
    }

    fn renew(&mut self, token: u8) -> (&'static str, &'static str) {
        let (hash, now) = (token_hash(token), self.now);
        let live = self.live();
        let of_token = live.history().ends().iter().rev().find(|end| end.token == hash);
        let was_broken = of_token.is_some_and(|end| end.broken().is_some());
        let is_free = self.oracle.holders.is_empty();
        let expected = match self.oracle.holders.iter_mut().find(|it| it.token == token) {
            Some(holder) if holder.broken => "broken",
            Some(holder) => {
                holder.end = now + TTL_MILLIS;
                "renewed"
            }
            None if was_broken => "broken",
            None if is_free => "not held",
            None => "mismatch",
        };
        let ttl = Ttl::from_millis(TTL_MILLIS).expect("a TTL");
        let LockReply::Renew(reply) = self.run(&LockCommand::Renew { token: hash, ttl: Some(ttl) })
        else {
            unreachable!()
        };
        let found = match &reply {
            RenewReply::Renewed(_) => "renewed",
            RenewReply::Lost(lost) => match lost[0].loss {
                LockLoss::Broken(_) => "broken",
                LockLoss::NotHeld => "not held",
                LockLoss::Mismatch => "mismatch",
            },
        };
        (expected, found)
    }

    /// Breaks the lease that the token has, if it has one.
    fn break_lease(&mut self, token: u8, grace: Option<u64>) -> (&'static str, &'static str) {
        let hash = token_hash(token);
        let live = self.live();
        let holder = live.holders().find(|holder| holder.token == hash);
        let Some((fencing_token, slot)) = holder.map(|it| (it.fencing_token, it.slot)) else {
            return ("", "");
        };
        for holder in self.oracle.holders.iter_mut().filter(|it| it.token == token) {
            holder.broken = true;
            holder.end = grace.map_or(holder.end, |grace| holder.end.min(self.now + grace));
        }
        let reason = Reason::parse("it stands still").expect("a reason");
        let grace = grace.map(Duration::from_millis);
        let slot = Some(slot);
        let command =
            BreakCommand { is_of_wait: false, fencing_token, slot, reason, by: None, grace };
        let command = LockCommand::Break(command);
        let LockReply::Break(reply) = self.run(&command) else { unreachable!() };
        self.oracle.expire(self.now);
        let before = self.state.clone();
        let _ = self.run(&command);
        assert_eq!(self.state, before, "a repeat of a break changes nothing");
        let is_broken = matches!(reply, BreakReply::Broken { .. });
        ("broken", if is_broken { "broken" } else { "not broken" })
    }

    /// What the documents promise.
    fn check(&mut self) {
        is_its_snapshot(&self.state);
        let live = self.live();
        let holders: Vec<_> = live.holders().collect();
        let tokens = |pairs: Vec<(TokenHash, usize)>| -> BTreeMap<TokenHashKey, usize> {
            pairs.into_iter().map(|(token, most)| (*token.as_bytes(), most)).collect()
        };
        let found = holders.iter().map(|it| (it.token, it.limit.holders())).collect();
        let expected =
            self.oracle.holders.iter().map(|it| (token_hash(it.token), it.most)).collect();
        assert_eq!(tokens(found), tokens(expected), "the holders");
        let line = live.queue().entries().iter().map(|entry| (entry.token, entry.joined));
        let expected = self.oracle.line.iter();
        let expected = expected.map(|it| (token_hash(it.token), Duration::from_millis(it.joined)));
        assert_eq!(line.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "the line");
        for holder in &holders {
            assert!(holders.len() <= holder.limit.holders(), "above a limit: {holders:?}");
            if let Limit::Counted(slots) = holder.limit {
                assert!(holder.slot < slots.get(), "a slot above the limit: {holder:?}");
            }
        }
        let slots: BTreeSet<_> = holders.iter().map(|holder| holder.slot).collect();
        assert_eq!(slots.len(), holders.len(), "a slot twice: {holders:?}");
        let eras: BTreeSet<_> = holders
            .iter()
            .filter(|holder| holder.limit == Limit::Shared)
            .map(|holder| holder.fencing_token)
            .collect();
        assert!(eras.len() <= 1, "readers with several fencing tokens: {holders:?}");
        self.check_fences(&live);
    }

    /// A new grant is above every earlier one of another token that it cannot be held together
    /// with: where one of the two is alone, and in one slot.
    fn check_fences(&mut self, live: &LockState) {
        for holder in live.holders() {
            let key = (*holder.token.as_bytes(), holder.fencing_token);
            if self.grants.insert(key, (holder.limit, holder.slot)).is_some() {
                continue;
            }
            let earlier = self.grants.iter().filter(|((token, _), (limit, slot))| {
                let is_apart = match (limit, holder.limit) {
                    (Limit::Counted(_), Limit::Counted(_)) if *slot == holder.slot => true,
                    _ => limit.holders() < 2 || holder.limit.holders() < 2,
                };
                is_apart && token != holder.token.as_bytes()
            });
            for ((_, earlier), _) in earlier {
                assert!(holder.fencing_token > *earlier, "{holder:?} is not above {earlier:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn rules_and_model_agree_on_every_history(steps in vec(step(), 1..60)) {
        let mut pair = Pair::new();
        for (pause, step) in steps {
            pair.now += pause;
            pair.oracle.expire(pair.now);
            let (expected, found) = pair.answers(&step);
            prop_assert_eq!(expected, found, "{:?}", step);
            pair.check();
        }
    }
}
