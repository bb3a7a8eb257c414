//! Goal: a client meets the rule of limits as `docs/modes.md` describes it, one corner a test.
//!
//! Method: commands on one [`LockState`] at moments that the test chooses. What follows is read from the replies
//! and from the state.

use std::time::Duration;

use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, BreakCommand, BreakReply, Change, EntryName,
    FencingToken, Lease, Limit, LockCommand, LockLoss, LockName, LockReply, LockState, Moment,
    Owner, Reason, ReleaseReply, RenewReply, Slots, TokenHash, Ttl, Waiter,
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
        Moment { now: self.now, unix_micros: 0, least_micros: 0, last_fencing_token: self.last }
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
            AcquireReply::Granted(lease) => lease,
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
            LockReply::Release(reply, _) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn renew(&mut self, number: u8) -> RenewReply {
        match self.run(&LockCommand::Renew { token: token(number), ttl: Ttl::DEFAULT }) {
            LockReply::Renew(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn break_lease(&mut self, fencing_token: FencingToken, grace: Option<Duration>) -> BreakReply {
        let reason = Reason::parse("it stands still").expect("a reason");
        let command = BreakCommand { fencing_token, slot: None, reason, by: None, grace };
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

#[test]
fn exclusive_holder_is_beside_no_other() {
    let mut lock = Lock::free();
    lock.granted(1, SHARED);
    lock.is_refused(2, EXCLUSIVE);
    assert_eq!(lock.release(1, None), ReleaseReply::Released);
    lock.granted(2, EXCLUSIVE);
    lock.is_refused(1, SHARED);
    lock.is_refused(3, counted(5));
}

#[test]
fn smallest_limit_among_the_holders_counts() {
    let mut lock = Lock::free();
    lock.granted(1, counted(3));
    lock.granted(2, counted(2));
    lock.is_refused(3, counted(3));
    lock.is_refused(3, SHARED);
    assert_eq!(lock.release(2, None), ReleaseReply::Released);
    lock.granted(3, SHARED);
    lock.granted(4, counted(8));
    lock.is_refused(5, counted(8));
}

#[test]
fn lower_limit_of_a_new_deployment_waits_until_few_enough_are_left() {
    let mut lock = Lock::free();
    for number in 1..=5 {
        lock.granted(number, counted(5));
    }
    lock.waits(6, counted(3));
    for number in 1..=2 {
        lock.release(number, None);
        assert_eq!(lock.next_waiters(), [], "after {number} there are too many");
    }
    lock.release(3, None);
    assert_eq!(lock.next_waiters(), [token(6)]);
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
fn readers_of_an_era_have_one_fencing_token_and_the_next_era_a_larger_one() {
    let mut lock = Lock::free();
    let first = lock.granted(1, SHARED).fencing_token;
    assert_eq!(lock.granted(2, SHARED).fencing_token, first);
    lock.release(1, None);
    assert_eq!(lock.granted(3, SHARED).fencing_token, first, "the era lasts");
    lock.release(2, None);
    lock.release(3, None);
    let writer = lock.granted(4, EXCLUSIVE).fencing_token;
    assert!(writer > first);
    lock.release(4, None);
    assert!(lock.granted(1, SHARED).fencing_token > writer);
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
fn entry_entered_again_changes_nothing_and_the_last_one_frees_the_lock() {
    let mut lock = Lock::free();
    lock.granted(1, EXCLUSIVE);
    for _ in 0..3 {
        let again = AcquireCommand { entry: entry("step-2"), ..acquire_command(1, EXCLUSIVE) };
        let AcquireReply::Repeated(lease) = lock.acquire(again) else { panic!("not repeated") };
        assert_eq!(lease.entries, [entry("step-2").expect("a name")]);
    }
    let left = lock.release(1, entry("step-2"));
    assert_eq!(left, ReleaseReply::Entered(Vec::new()), "the unnamed entry is left");
    assert_eq!(lock.release(1, entry("step-2")), left, "a repeat of a release");
    assert_eq!(lock.release(1, None), ReleaseReply::Released);
    lock.granted(2, EXCLUSIVE);
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
fn holder_has_a_bounded_number_of_entries() {
    let mut lock = Lock::free();
    lock.granted(1, EXCLUSIVE);
    for number in 2..=64 {
        let entry = entry(&format!("entry {number}"));
        let reply = lock.acquire(AcquireCommand { entry, ..acquire_command(1, EXCLUSIVE) });
        assert!(matches!(reply, AcquireReply::Repeated(_)), "{number}: {reply:?}");
    }
    let command = AcquireCommand { entry: entry("one more"), ..acquire_command(1, EXCLUSIVE) };
    assert_eq!(lock.acquire(command), AcquireReply::Full);
}

#[test]
fn downgrade_is_at_once_and_lets_the_readers_in() {
    let mut lock = Lock::free();
    let writer = lock.granted(1, EXCLUSIVE);
    lock.waits(2, SHARED);
    lock.waits(3, SHARED);
    lock.waits(4, EXCLUSIVE);
    let AcquireReply::Repeated(reader) = lock.acquire(acquire_command(1, SHARED)) else {
        panic!("a downgrade waits for nothing")
    };
    assert_eq!((reader.limit, reader.fencing_token), (SHARED, writer.fencing_token));
    assert_eq!(lock.next_waiters(), [token(2), token(3)], "and not the writer");
    assert_eq!(lock.granted(2, SHARED).fencing_token, writer.fencing_token);
}

#[test]
fn upgrade_is_for_the_sole_holder_with_none_in_line_and_is_a_grant_of_its_own() {
    let mut lock = Lock::free();
    let reader = lock.granted(1, SHARED);
    lock.granted(2, SHARED);
    let queue = Some(Duration::from_secs(4));
    for number in [1, 2] {
        let reply = lock.acquire(AcquireCommand { queue, ..acquire_command(number, EXCLUSIVE) });
        assert!(matches!(reply, AcquireReply::NotAlone(_)), "{number}: {reply:?}");
    }
    assert!(lock.state.queue().entries().is_empty(), "an upgrade waits");
    lock.release(2, None);
    lock.waits(3, EXCLUSIVE);
    let reply = lock.acquire(acquire_command(1, EXCLUSIVE));
    assert!(matches!(reply, AcquireReply::NotAlone(_)), "passes a waiter: {reply:?}");
    lock.run(&LockCommand::Withdraw { token: token(3), attempt: Attempt::new(3) });
    let writer = lock.granted(1, EXCLUSIVE);
    assert!(writer.fencing_token > reader.fencing_token);
    let AcquireReply::Repeated(again) = lock.acquire(acquire_command(1, EXCLUSIVE)) else {
        panic!("the same upgrade again is the same grant")
    };
    assert_eq!(again.fencing_token, writer.fencing_token);
}

#[test]
fn as_many_as_may_hold_a_lock_and_no_more() {
    let mut lock = Lock::free();
    for number in 0..1000_u64 {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let token = TokenHash::from_bytes(bytes);
        let reply = lock.acquire(AcquireCommand { token, ..acquire_command(1, SHARED) });
        assert!(matches!(reply, AcquireReply::Granted(_)), "{number}: {reply:?}");
    }
    assert_eq!(lock.acquire(acquire_command(255, SHARED)), AcquireReply::Full);
    assert_eq!(lock.state.holding(&lock.name, lock.now, 10).map(|it| it.others.len()), Some(9));
}

#[test]
fn broken_lease_ends_when_it_would_and_is_not_renewed() {
    let mut lock = Lock::free();
    let lease = lock.granted(1, EXCLUSIVE);
    lock.now += Duration::from_secs(10);
    let ends_in = Ttl::DEFAULT.get() - Duration::from_secs(10);
    for _ in 0..2 {
        let broken = lock.break_lease(lease.fencing_token, None);
        assert_eq!(broken, BreakReply::Broken { ends_in });
    }
    assert!(matches!(lock.renew(1), RenewReply::Lost(LockLoss::Broken(_))));
    lock.is_refused(2, EXCLUSIVE);
    lock.now += ends_in;
    assert!(
        matches!(lock.renew(1), RenewReply::Lost(LockLoss::Broken(_))),
        "after the end its holder reads why"
    );
    let next = lock.granted(2, EXCLUSIVE);
    assert!(next.fencing_token > lease.fencing_token);
    assert_eq!(lock.renew(3), RenewReply::Lost(LockLoss::Mismatch));
}

#[test]
fn grace_ends_a_broken_lease_sooner_and_never_later() {
    let mut lock = Lock::free();
    let lease = lock.granted(1, EXCLUSIVE);
    let (soon, late) = (Duration::from_secs(2), Duration::from_secs(500));
    let broken = lock.break_lease(lease.fencing_token, Some(late));
    assert_eq!(broken, BreakReply::Broken { ends_in: Ttl::DEFAULT.get() });
    assert_eq!(
        lock.break_lease(lease.fencing_token, Some(soon)),
        BreakReply::Broken { ends_in: soon }
    );
    assert_eq!(
        lock.break_lease(lease.fencing_token, Some(Duration::ZERO)),
        BreakReply::Broken { ends_in: Duration::ZERO }
    );
    lock.granted(2, EXCLUSIVE);
}

#[test]
fn break_names_the_grant_and_takes_no_later_one() {
    let mut lock = Lock::free();
    let first = lock.granted(1, EXCLUSIVE);
    lock.release(1, None);
    assert_eq!(lock.break_lease(first.fencing_token, None), BreakReply::NotHeld);
    lock.granted(2, EXCLUSIVE);
    let missed = lock.break_lease(first.fencing_token, None);
    assert!(matches!(missed, BreakReply::Mismatch(_)), "{missed:?}");
    assert!(matches!(lock.renew(2), RenewReply::Renewed(_)));
}

#[test]
fn history_has_breaks_and_expiries_and_no_releases() {
    let mut lock = Lock::free();
    lock.granted(1, EXCLUSIVE);
    lock.release(1, None);
    let expired = lock.granted(2, EXCLUSIVE).fencing_token;
    lock.now += Duration::from_secs(40);
    let broken = lock.granted(3, EXCLUSIVE).fencing_token;
    lock.break_lease(broken, Some(Duration::ZERO));
    let LockReply::Recall(ends) = lock.run(&LockCommand::Recall) else { panic!("no history") };
    let ends: Vec<_> = ends.iter().map(|end| (end.fencing_token, end.broken().is_some())).collect();
    assert_eq!(ends, [(expired, false), (broken, true)]);
    assert!(!lock.state.is_empty(), "a break is kept");
    lock.now += Duration::from_secs(24 * 60 * 60);
    assert!(lock.state.is_stale(&lock.moment()));
    assert!(lock.state.live(&lock.moment()).is_empty(), "a break is kept for a day");
}

#[test]
fn queue_entry_has_the_label_of_the_last_request_and_the_moment_of_the_first() {
    let mut lock = Lock::free();
    lock.granted(1, EXCLUSIVE);
    let asks = |number, label: &str| AcquireCommand {
        owner: Owner::parse(label).expect("a label"),
        queue: Some(Duration::from_secs(4)),
        ..acquire_command(number, EXCLUSIVE)
    };
    lock.acquire(asks(2, "alice"));
    lock.now += Duration::from_secs(3);
    lock.waits(3, SHARED);
    lock.acquire(asks(2, "alice, again"));
    lock.now += Duration::from_secs(2);
    let waiter = |label: &str, seconds, limit| Waiter {
        owner: Owner::parse(label).expect("a label"),
        waited: Duration::from_secs(seconds),
        limit,
    };
    let expected = vec![waiter("alice, again", 5, EXCLUSIVE), waiter("", 2, SHARED)];
    assert_eq!(lock.run(&LockCommand::LookAtQueue), LockReply::LookAtQueue(expected));
    // A waiter that left joins again at the end.
    let (token, attempt) = (token(2), Attempt::new(2));
    lock.run(&LockCommand::Withdraw { token, attempt });
    lock.acquire(asks(2, "alice"));
    let expected = vec![waiter("", 2, SHARED), waiter("alice", 0, EXCLUSIVE)];
    assert_eq!(lock.run(&LockCommand::LookAtQueue), LockReply::LookAtQueue(expected));
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
