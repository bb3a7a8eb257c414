//! One of the twenty clients of a lock campaign, with its habits and its mistakes.
//!
//! Goal: clients acquire, renew, release and look, rightly and wrongly, at moments that vary.
//!
//! Method: dice with a seed choose the mode, the locks and each step, such as to repeat, to write
//! late, to meddle, to break a lease or to leave. The worker writes down every request that it
//! sent, also one that it left without an answer. `checker_finds_every_mutant` shows that these
//! habits bring out the mistakes of keylatch.

use std::time::Duration;

use keylatch_testkit::Dice;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Request};
use super::clock::{now, pass};
use super::history::{AcceptedWrite, Ask, Event, Lease, LockAnswer, Write};
use super::mode::{Mode, SLOTS, Share};
use super::place::Abilities;
use super::resource::Access;

/// The longest TTL of each lock, in ms; the shortest is 200.
pub(super) const TTLS: [u64; 8] = [300, 300, 300, 500, 500, 800, 1300, 2000];
const SHORTEST_TTL: u64 = 200;

/// A client that takes locks, works under them, and makes mistakes.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) client: Client,
    pub(super) resource: Access,
    /// What its store can do.
    pub(super) abilities: Abilities,
    pub(super) dice: Dice,
    /// It takes no lock, and asks under tokens that have none.
    pub(super) is_stranger: bool,
    pub(super) ending: CancellationToken,
    pub(super) events: Vec<Event>,
    pub(super) writes: Vec<Write>,
}

/// What a client asks for: one lock, or several at once.
#[derive(Debug, Clone)]
struct Claim {
    locks: Vec<usize>,
    token: u64,
    mode: Mode,
}

impl Claim {
    fn acquire(&self, ttl: u64, wait: u64) -> Request {
        Request::acquire(&self.locks, self.token, ttl, wait).with_mode(self.mode)
    }

    fn longest_ttl(&self) -> u64 {
        self.locks.iter().map(|lock| TTLS[*lock]).min().unwrap_or(SHORTEST_TTL)
    }
}

impl Worker {
    /// Works until `ending`. It leaves what is under way then as it is.
    pub(super) async fn work(mut self) -> Self {
        while !self.ending.is_cancelled() {
            let lock = self.any_lock();
            match self.dice.below(8) {
                2.. if self.is_stranger => self.ask_wrongly(lock).await,
                0 if self.abilities.modes && self.dice.below(2) == 0 => {
                    self.ask(Request::new(&[lock], 0, Ask::Recall)).await;
                }
                0 => drop(self.look(lock).await),
                1 => self.meddle(lock).await,
                _ => self.lock(lock).await,
            }
            self.pause(30).await;
        }
        self
    }

    /// Tries to release or renew another client's lock, or breaks its lease.
    async fn meddle(&mut self, lock: usize) {
        match self.abilities.modes && self.dice.below(12) == 0 {
            true => self.break_lease(lock).await,
            false => self.ask_wrongly(lock).await,
        }
    }

    /// Tries to release or renew another client's lock.
    async fn ask_wrongly(&mut self, lock: usize) {
        let wrong = self.client.number();
        let ttl = self.ttl(TTLS[lock]);
        match self.dice.below(2) {
            0 => drop(self.ask(Request::renew(&[lock], wrong, ttl)).await),
            _ => drop(self.ask(Request::new(&[lock], wrong, Ask::Release)).await),
        }
    }

    /// Breaks the lease of the grant that a look shows, mostly without haste.
    async fn break_lease(&mut self, lock: usize) {
        let shown = self.look(lock).await;
        let Some(holder) = shown.iter().flat_map(|event| event.told.holders()).next() else {
            return;
        };
        let fencing_token = holder.share.fencing_token;
        let at_once = self.dice.below(4) == 0;
        self.ask(Request::new(&[lock], 0, Ask::Break { fencing_token, at_once })).await;
    }

    /// Takes a lock, or some at once, holds it for some time, and mostly gives it back.
    async fn lock(&mut self, lock: usize) {
        let (mode, locks) = (self.mode(), self.with_others(lock));
        let claim = Claim { locks, token: self.client.number(), mode };
        let ttl = self.ttl(claim.longest_ttl());
        let mut request = claim.acquire(ttl, self.wait());
        let mut got = None;
        for _ in 0..4 {
            request.patience = self.patience(request.patience);
            let events = match self.dice.below(8) {
                0 => self.ask_twice(&request).await,
                _ => self.ask(request.clone()).await,
            };
            let again = events[0].told.is_ambiguous() && self.dice.below(4) > 0;
            got = leases(&events);
            if got.is_some() || !again {
                break;
            }
            request.is_repeat = true;
            self.pause(60).await;
        }
        match got {
            Some(leases) => self.hold(&claim, leases).await,
            None if self.dice.below(2) == 0 => self.give_back(&claim).await,
            None => {}
        }
    }

    /// Works under locks, sometimes for longer than they last.
    async fn hold(&mut self, claim: &Claim, mut held: Vec<Lease>) {
        let most = claim.longest_ttl();
        let longest = if self.dice.below(2) == 0 { 100_000 } else { most * 1300 };
        let until = now() + self.dice.below(longest);
        while now() < until && !self.ending.is_cancelled() {
            let events = match self.dice.below(9) {
                0 => self.renew(claim).await,
                1 => self.acquire_again(claim).await,
                2 => self.look_at_one(claim).await,
                3 | 4 => {
                    self.write(claim, &held).await;
                    continue;
                }
                5 => {
                    let lock = self.one_of(claim);
                    self.meddle(lock).await;
                    continue;
                }
                _ => {
                    self.pause(60).await;
                    continue;
                }
            };
            held = leases(&events).filter(|all| all.len() == held.len()).unwrap_or(held);
            if events.iter().any(is_lost) {
                break;
            }
        }
        if self.dice.below(4) > 0 {
            self.give_back(claim).await;
        }
        if self.dice.below(4) == 0 {
            // Too late.
            self.write(claim, &held).await;
            self.ask(Request::renew(&claim.locks, claim.token, most).with_mode(claim.mode)).await;
        }
    }

    /// Renews all locks of a claim, or sometimes one of several alone.
    async fn renew(&mut self, claim: &Claim) -> Vec<Event> {
        let ttl = self.ttl(claim.longest_ttl());
        let one = [self.one_of(claim)];
        let locks = if self.dice.below(4) == 0 { &one[..] } else { &claim.locks };
        self.ask(Request::renew(locks, claim.token, ttl).with_mode(claim.mode)).await
    }

    async fn acquire_again(&mut self, claim: &Claim) -> Vec<Event> {
        let ttl = self.ttl(claim.longest_ttl());
        self.ask(Request { is_repeat: true, ..claim.acquire(ttl, 0) }).await
    }

    async fn look(&mut self, lock: usize) -> Vec<Event> {
        self.ask(Request::new(&[lock], 0, Ask::Look)).await
    }

    async fn look_at_one(&mut self, claim: &Claim) -> Vec<Event> {
        let lock = self.one_of(claim);
        self.look(lock).await
    }

    async fn give_back(&mut self, claim: &Claim) {
        for _ in 0..3 {
            let mut request = Request::new(&claim.locks, claim.token, Ask::Release);
            request.patience = self.patience(request.patience);
            if !self.ask(request).await[0].told.is_ambiguous() {
                break;
            }
        }
        if self.dice.below(4) == 0 {
            self.look_at_one(claim).await;
        }
    }

    /// Writes to what one of the locks protects.
    async fn write(&mut self, claim: &Claim, held: &[Lease]) {
        let place = self.dice.below(claim.locks.len() as u64) as usize;
        let (lock, Lease { fencing_token, slot, .. }) = (claim.locks[place], held[place]);
        let share = Share { fencing_token, mode: claim.mode, slot };
        let sent = now();
        let taken = self.resource.write(AcceptedWrite { lock, token: claim.token, share }).await;
        let read = now();
        if let Some(taken) = taken {
            let token = claim.token;
            self.writes.push(Write { lock, token, fencing_token, sent, read, taken });
        }
    }

    async fn ask(&mut self, request: Request) -> Vec<Event> {
        let ending = self.ending.clone();
        let asked = self.client.ask(&request, &mut self.dice);
        let sent = now();
        let events = match ending.run_until_cancelled(asked).await {
            Some(events) => events,
            None => left(self.client.number(), &request, sent),
        };
        self.events.extend(events.iter().cloned());
        events
    }

    /// The same token twice at once; gives the answer that says more. Both may get new locks of a
    /// set, if one is broken in between, so neither answer says that all of them are new.
    async fn ask_twice(&mut self, request: &Request) -> Vec<Event> {
        let is_repeat = request.is_repeat || request.locks.len() > 1;
        let (request, sent) = (&Request { is_repeat, ..request.clone() }, now());
        let mut other_dice = Dice(self.dice.below(u64::MAX));
        let both = async {
            let one = self.client.ask(request, &mut self.dice);
            tokio::join!(one, self.client.ask(request, &mut other_dice))
        };
        let both = self.ending.run_until_cancelled(both).await;
        let (one, other) = both.unwrap_or_else(|| {
            let left = || left(self.client.number(), request, sent);
            (left(), left())
        });
        self.events.extend(one.iter().chain(&other).cloned());
        if leases(&one).is_some() { one } else { other }
    }

    async fn pause(&mut self, most: u64) {
        let pause = pass(Duration::from_millis(self.dice.below(most)));
        self.ending.run_until_cancelled(pause).await;
    }

    fn any_lock(&mut self) -> usize {
        self.dice.below(TTLS.len() as u64) as usize
    }

    fn one_of(&mut self, claim: &Claim) -> usize {
        claim.locks[self.dice.below(claim.locks.len() as u64) as usize]
    }

    /// Half of the claims are exclusive.
    fn mode(&mut self) -> Mode {
        if !self.abilities.modes {
            return Mode::Exclusive;
        }
        match self.dice.below(8) {
            0 | 1 => Mode::Shared,
            2 | 3 => Mode::Counted(2 + self.dice.below(u64::from(SLOTS) - 1) as u32),
            _ => Mode::Exclusive,
        }
    }

    /// The lock, and rarely one or two others with it.
    fn with_others(&mut self, lock: usize) -> Vec<usize> {
        let mut locks = vec![lock];
        if self.abilities.sets && self.dice.below(8) == 0 {
            for _ in 0..=self.dice.below(2) {
                let other = self.any_lock();
                if !locks.contains(&other) {
                    locks.push(other);
                }
            }
        }
        locks
    }

    fn ttl(&mut self, most: u64) -> u64 {
        SHORTEST_TTL + self.dice.below(most - SHORTEST_TTL + 1)
    }

    fn wait(&mut self) -> u64 {
        match self.dice.below(2) {
            0 => 0,
            _ => 100 + self.dice.below(1400),
        }
    }

    /// Some leave before there is an answer.
    fn patience(&mut self, most: Duration) -> Duration {
        match self.dice.below(10) {
            0 => Duration::from_millis(1 + self.dice.below(150)),
            _ => most,
        }
    }
}

/// The leases of all locks that were asked for, if it was granted or renewed.
fn leases(events: &[Event]) -> Option<Vec<Lease>> {
    events.iter().map(|event| event.told.lease()).collect()
}

/// Whether an answer to a request of the holder says that it is none, or will not be.
fn is_lost(event: &Event) -> bool {
    use LockAnswer as T;
    let says_so =
        matches!(event.told, T::NotHeld | T::Mismatch | T::Held(_) | T::Refused | T::Broken);
    says_so && event.ask != Ask::Look
}

/// A request that was left.
fn left(number: u64, request: &Request, sent: u64) -> Vec<Event> {
    request.events(number, [sent, now()], |_| LockAnswer::Nothing)
}
