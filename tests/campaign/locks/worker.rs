//! One of the twenty clients of a lock campaign, with its habits and its mistakes.
//!
//! Goal: clients acquire, renew, release and look, rightly and wrongly, at moments that vary.
//!
//! Method: dice with a seed choose each step, such as to repeat, to write late, to meddle or to
//! leave. The worker writes down every request that it sent, also one that it left without an
//! answer. `checker_finds_every_mutant` shows that these habits bring out the mistakes of keylatch.

use std::time::Duration;

use keylatch_testkit::Dice;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Request, ends};
use super::clock::{now, pass};
use super::history::{Ask, Event, Taken, Told, Write};
use super::resource::Access;

/// The longest TTL of each lock, in ms; the shortest is 200.
pub(super) const TTLS: [u64; 8] = [300, 300, 300, 500, 500, 800, 1300, 2000];
const SHORTEST_TTL: u64 = 200;

/// A client that takes locks, works under them, and makes mistakes.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) client: Client,
    pub(super) resource: Access,
    pub(super) dice: Dice,
    pub(super) ending: CancellationToken,
    pub(super) events: Vec<Event>,
    pub(super) writes: Vec<Write>,
}

impl Worker {
    /// Works until `ending`. It leaves what is under way then as it is.
    pub(super) async fn work(mut self) -> Self {
        while !self.ending.is_cancelled() {
            let lock = self.dice.below(TTLS.len() as u64) as usize;
            match self.dice.below(8) {
                0 => drop(self.ask(Request::new(lock, 0, Ask::Look)).await),
                1 => self.meddle(lock).await,
                _ => self.lock(lock).await,
            }
            self.pause(30).await;
        }
        self
    }

    /// Tries to release or renew another client's lock.
    async fn meddle(&mut self, lock: usize) {
        let wrong = self.client.number();
        let ttl = self.ttl(lock);
        match self.dice.below(2) {
            0 => self.ask(Request::renew(lock, wrong, ttl)).await,
            _ => self.ask(Request::new(lock, wrong, Ask::Release)).await,
        };
    }

    /// Takes a lock, holds it for some time, and mostly gives it back.
    async fn lock(&mut self, lock: usize) {
        let token = self.client.number();
        let mut request = Request::acquire(lock, token, self.ttl(lock), self.wait());
        let mut got = None;
        for _ in 0..4 {
            request.patience = self.patience(request.patience);
            let event = match self.dice.below(8) {
                0 => self.ask_twice(request).await,
                _ => self.ask(request).await,
            };
            let again = event.told.is_ambiguous() && self.dice.below(4) > 0;
            got = ends(&event);
            if got.is_some() || !again {
                break;
            }
            self.pause(60).await;
        }
        match got {
            Some((fencing_token, _)) => self.hold(lock, token, fencing_token).await,
            None if self.dice.below(2) == 0 => self.give_back(lock, token).await,
            None => {}
        }
    }

    /// Works under a lock, sometimes for longer than it lasts.
    async fn hold(&mut self, lock: usize, token: u64, mut fencing_token: u64) {
        let longest = if self.dice.below(2) == 0 { 100_000 } else { TTLS[lock] * 1300 };
        let until = now() + self.dice.below(longest);
        while now() < until && !self.ending.is_cancelled() {
            let ttl = self.ttl(lock);
            let event = match self.dice.below(9) {
                0 => self.ask(Request::renew(lock, token, ttl)).await,
                1 => self.ask(Request::acquire(lock, token, ttl, 0)).await,
                2 => self.ask(Request::new(lock, token, Ask::Look)).await,
                3 | 4 => {
                    self.write(lock, token, fencing_token).await;
                    continue;
                }
                5 => {
                    self.meddle(lock).await;
                    continue;
                }
                _ => {
                    self.pause(60).await;
                    continue;
                }
            };
            fencing_token = ends(&event).map_or(fencing_token, |(fencing_token, _)| fencing_token);
            let lost = matches!(event.told, Told::NotHeld | Told::Mismatch | Told::Held(_));
            if lost && event.ask != Ask::Look {
                break;
            }
        }
        if self.dice.below(4) > 0 {
            self.give_back(lock, token).await;
        }
        if self.dice.below(4) == 0 {
            // Too late.
            self.write(lock, token, fencing_token).await;
            self.ask(Request::renew(lock, token, TTLS[lock])).await;
        }
    }

    async fn give_back(&mut self, lock: usize, token: u64) {
        for _ in 0..3 {
            let mut request = Request::new(lock, token, Ask::Release);
            request.patience = self.patience(request.patience);
            if !self.ask(request).await.told.is_ambiguous() {
                break;
            }
        }
        if self.dice.below(4) == 0 {
            self.ask(Request::new(lock, token, Ask::Look)).await;
        }
    }

    async fn write(&mut self, lock: usize, token: u64, fencing_token: u64) {
        let sent = now();
        let taken = self.resource.write(Taken { lock, token, fencing_token }).await;
        let read = now();
        if let Some(taken) = taken {
            self.writes.push(Write { lock, token, fencing_token, sent, read, taken });
        }
    }

    async fn ask(&mut self, request: Request) -> Event {
        let ending = self.ending.clone();
        let event = self.client.ask(request, &mut self.dice);
        let sent = now();
        let event = match ending.run_until_cancelled(event).await {
            Some(event) => event,
            None => left(self.client.number(), request, sent),
        };
        self.events.push(event.clone());
        event
    }

    /// The same token twice at once; gives the answer that says more.
    async fn ask_twice(&mut self, request: Request) -> Event {
        let sent = now();
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
        self.events.extend([one.clone(), other.clone()]);
        if one.told.lease().is_some() { one } else { other }
    }

    async fn pause(&mut self, most: u64) {
        let pause = pass(Duration::from_millis(self.dice.below(most)));
        self.ending.run_until_cancelled(pause).await;
    }

    fn ttl(&mut self, lock: usize) -> u64 {
        SHORTEST_TTL + self.dice.below(TTLS[lock] - SHORTEST_TTL + 1)
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

/// A request that was left.
fn left(number: u64, request: Request, sent: u64) -> Event {
    let Request { lock, token, ask, .. } = request;
    Event { number, lock, token, ask, sent, read: now(), told: Told::Nothing }
}
