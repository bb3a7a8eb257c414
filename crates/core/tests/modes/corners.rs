//! Goal: a lock keeps no more and no less of its holders, its waiters and its past than
//! `docs/modes.md` says.
//!
//! Method: commands on one [`LockState`] at moments that the test chooses. What follows is read
//! from the state, and in two cases from the replies. `tests/stores/mode_conformance.rs` has the
//! other replies, on every store.

use std::time::Duration;

use keylatch_core::entry::Entry as _;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, BreakCommand, BreakReply, Change, EntryName,
    FencingToken, Lease, Limit, LockCommand, LockName, LockReply, LockState, Moment, Owner, Reason,
    ReleaseReply, RenewReply, Slots, TokenHash, Ttl,
};

/// One lock, and a clock that a test moves.
struct Lock {
    name: LockName,
    state: LockState,
    now: Duration,
    last: FencingToken,
}

const EXCLUSIVE: Limit = Limit::Exclusive;
const SHARED: Limit = Limit::Shared;

fn counted(slots: u64) -> Limit {
    Limit::Counted(Slots::new(slots).expect("a number of slots"))
}

fn token(number: u8) -> TokenHash {
    TokenHash::from_bytes([number; 32])
}

fn entry(name: &str) -> Option<EntryName> {
    EntryName::parse(name).ok()
}

fn acquire_command(number: u8, limit: Limit) -> AcquireCommand {
    let attempt = Attempt::new(number.into());
    AcquireCommand { limit, ..AcquireCommand::new(token(number), Ttl::DEFAULT, attempt) }
}

impl Lock {
    fn free() -> Self {
        Self {
            name: LockName::parse("lock").expect("a name"),
            state: LockState::default(),
            now: Duration::from_secs(1000),
            last: FencingToken::NONE,
        }
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now, last_fencing_token: self.last, ..Moment::default() }
    }

    fn run(&mut self, command: &LockCommand) -> LockReply {
        let (state, reply) = self.state.apply(&self.name, command, &self.moment());
        self.last = self.last.max(state.fencing_token().unwrap_or_default());
        self.state = state;
        reply
    }

    fn acquire(&mut self, command: AcquireCommand) -> AcquireReply {
        match self.run(&LockCommand::Acquire(command)) {
            LockReply::Acquire(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn granted(&mut self, number: u8, limit: Limit) -> Lease {
        match self.acquire(acquire_command(number, limit)) {
            AcquireReply::Granted(leases) => leases[0].clone(),
            other => panic!("{number} is not granted: {other:?}"),
        }
    }

    /// Asks in vain, and keeps a queue entry.
    fn waits(&mut self, number: u8, limit: Limit) {
        let queue = Some(Duration::from_secs(4));
        let reply = self.acquire(AcquireCommand { queue, ..acquire_command(number, limit) });
        assert!(matches!(reply, AcquireReply::Busy(_)), "{number} does not wait: {reply:?}");
    }

    fn release(&mut self, number: u8, name: Option<EntryName>) -> ReleaseReply {
        match self.run(&LockCommand::Release { token: token(number), entry: name }) {
            LockReply::Release(replies) => replies[0].0.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn break_lease(&mut self, fencing_token: FencingToken, grace: Option<Duration>) -> BreakReply {
        let reason = Reason::parse("it stands still").expect("a reason");
        let command =
            BreakCommand { is_of_wait: false, fencing_token, slot: None, reason, by: None, grace };
        match self.run(&LockCommand::Break(command)) {
            LockReply::Break(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn next_waiters(&self) -> Vec<TokenHash> {
        self.state.next_waiters().copied().collect()
    }

    fn is_refused(&mut self, number: u8, limit: Limit) {
        let reply = self.acquire(acquire_command(number, limit));
        assert!(matches!(reply, AcquireReply::Busy(_)), "{number} is not refused: {reply:?}");
    }
}

/// Each step on the lock writes all of its row.
#[test]
fn row_of_a_lock_with_many_holders_has_a_bound() {
    for (label, names, fewest) in [(0, 1, 1000), (256, 1, 200), (0, 4, 500), (20, 64, 20)] {
        let mut lock = Lock { last: FencingToken::new(1 << 51), ..Lock::free() };
        lock.now = Duration::new(1_800_000_000, 999_999_999);
        let mut holders = 0_u16;
        'full: loop {
            let mut bytes = [7; 32];
            bytes[..2].copy_from_slice(&holders.to_be_bytes());
            let ttl = Ttl::from_millis(Ttl::MAX_MILLIS - 1).expect("a TTL");
            let attempt = Attempt::new(u64::MAX);
            let command = AcquireCommand::new(TokenHash::from_bytes(bytes), ttl, attempt);
            let owner = Owner::parse(&"o".repeat(label)).expect("a label");
            for name in 0..names {
                let (owner, entry) = (owner.clone(), entry(&format!("step {name}")));
                let command =
                    AcquireCommand { limit: counted(1000), owner, entry, ..command.clone() };
                let reply = lock.acquire(command);
                if matches!(reply, AcquireReply::Full | AcquireReply::Busy(_)) {
                    break 'full;
                }
            }
            holders += 1;
        }
        let row = lock.state.encode().expect("a row").len();
        assert!(row <= Limit::ROW_BYTES_MAX, "{row} bytes of {holders} holders");
        assert!(holders >= fewest, "{holders} holders, label {label}, entries {names}");
        // A renewal adds no byte to the row, so it passes.
        let renewal = LockCommand::Renew {
            token: lock.state.holders().next().unwrap().token,
            ttl: Some(Ttl::MAX),
        };
        assert!(matches!(lock.run(&renewal), LockReply::Renew(RenewReply::Renewed(_))));
    }
}

#[test]
fn reader_does_not_pass_a_writer_that_waits() {
    let mut lock = Lock::free();
    lock.granted(1, SHARED);
    lock.waits(2, EXCLUSIVE);
    lock.is_refused(3, SHARED);
    lock.waits(4, SHARED);
    lock.waits(5, SHARED);
    lock.waits(6, EXCLUSIVE);
    lock.release(1, None);
    assert_eq!(lock.next_waiters(), [token(2)]);
    lock.granted(2, EXCLUSIVE);
    lock.release(2, None);
    // Both come in together, in whatever order they ask.
    assert_eq!(lock.next_waiters(), [token(4), token(5)]);
    lock.granted(5, SHARED);
    assert_eq!(lock.next_waiters(), [token(4)]);
    lock.granted(4, SHARED);
    lock.is_refused(6, EXCLUSIVE);
}

#[test]
fn counted_holders_have_the_lowest_free_slot_and_rising_fencing_tokens() {
    let mut lock = Lock::free();
    let leases: Vec<_> = (1..=3).map(|number| lock.granted(number, counted(3))).collect();
    let slots: Vec<_> = leases.iter().map(|lease| lease.slot).collect();
    assert_eq!(slots, [0, 1, 2]);
    assert!(leases.is_sorted_by(|one, next| one.fencing_token < next.fencing_token));
    lock.release(2, None);
    let again = lock.granted(4, counted(3));
    assert_eq!(again.slot, 1);
    assert!(again.fencing_token > leases[2].fencing_token);
}

#[test]
fn withdrawal_of_an_entry_leaves_the_others() {
    let mut lock = Lock::free();
    lock.granted(1, EXCLUSIVE);
    let attempt = Attempt::new(77);
    lock.acquire(AcquireCommand { entry: entry("late"), attempt, ..acquire_command(1, EXCLUSIVE) });
    lock.run(&LockCommand::Withdraw { token: token(1), attempt });
    let holders: Vec<_> = lock.state.holders().collect();
    assert_eq!(holders.len(), 1, "the holder went with an entry of its own");
    assert_eq!(holders[0].entries.names().count(), 0, "the entry stayed");
}

#[test]
fn break_is_kept_for_a_day() {
    let mut lock = Lock::free();
    let broken = lock.granted(1, EXCLUSIVE).fencing_token;
    lock.break_lease(broken, Some(Duration::ZERO));
    assert!(!lock.state.live(&lock.moment()).is_empty(), "it is kept");
    lock.now += Duration::from_secs(24 * 60 * 60);
    assert!(lock.state.is_stale(&lock.moment()));
    assert!(lock.state.live(&lock.moment()).is_empty(), "for a day");
}

#[test]
fn holding_tells_of_as_many_holders_as_are_asked_for() {
    let mut lock = Lock::free();
    for number in 1..=20 {
        lock.granted(number, SHARED);
    }
    assert_eq!(lock.state.holding(&lock.name, lock.now, 10).map(|it| it.others.len()), Some(9));
}

#[test]
fn clean_cycles_leave_nothing() {
    let mut lock = Lock::free();
    for number in 1..=5 {
        lock.granted(number, SHARED);
    }
    for number in 1..=5 {
        lock.release(number, None);
    }
    assert_eq!(lock.state, LockState::default());
}

#[test]
fn watchers_hear_of_each_holder() {
    let mut lock = Lock::free();
    let lease = lock.granted(1, counted(2));
    let before = lock.state.clone();
    lock.granted(2, counted(2));
    let changes = before.changes(&lock.state, &lock.name, lock.now);
    assert!(matches!(&changes[..], [Change::Acquired(holder)] if holder.slot == 1), "{changes:?}");
    let before = lock.state.clone();
    lock.break_lease(lease.fencing_token, Some(Duration::ZERO));
    let changes = before.changes(&lock.state, &lock.name, lock.now);
    let [Change::Broken(holder), Change::Released(id)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((holder.slot, id.slot), (0, 0));
}

#[test]
fn history_is_in_the_order_of_the_ends_although_one_step_sees_them() {
    let mut lock = Lock::free();
    let ttl = |seconds: u64| Ttl::from_millis(seconds * 1000).expect("a TTL");
    for (number, seconds) in [(1, 150), (2, 90), (3, 120)] {
        let command = AcquireCommand { ttl: ttl(seconds), ..acquire_command(number, SHARED) };
        assert!(matches!(lock.acquire(command), AcquireReply::Granted(_)));
    }
    lock.now += Duration::from_secs(200);
    let LockReply::Recall(ends) = lock.run(&LockCommand::Recall) else { panic!("no history") };
    assert!(ends.iter().map(|end| end.token).eq([2, 3, 1].map(token)), "{ends:?}");
}
