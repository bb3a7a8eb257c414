//! One election of three machines, of which each leader comes to its end in one way or another.
//!
//! Goal: the judge learns when each machine said that it leads, and when a leader was to end.
//!
//! Method: the leader's command notes that it runs. Then its machine is killed, stopped, cut off or
//! asked to end, and the next begin is waited for. Requests ask each machine all the time whether
//! it leads; what it says has its fencing token.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_testkit::{Dice, WallClock, free_port};
use nix::sys::signal::Signal;
use reqwest::Client;
use tokio_util::sync::CancellationToken;

use super::TTL;
use super::fleet::Fleet;
use super::ledger::{Ledger, Note, now};
use super::machine::{ENDS, Fault, Machine, Running, millis};
use super::terms::{History, Saying};
use crate::lateness::Lateness;
use crate::locks::pass;

const MACHINES: usize = 3;
/// How many leaders come to their end.
const TERMS: usize = 5;
/// How often a machine is asked, and how long it has for the response.
const LOOK: Duration = Duration::from_millis(150);
const LIMIT: Duration = Duration::from_secs(1);
/// How long a machine that has ended is away.
const AWAY: Duration = Duration::from_millis(500);

/// An election that is to be held.
#[derive(Debug)]
pub(super) struct Election {
    number: u64,
    dice: Dice,
    ledger: Ledger,
    /// Where each machine says who leads.
    ports: [u16; MACHINES],
}

impl Election {
    pub(super) fn new(number: u64, dice: Dice) -> Self {
        let (ledger, ports) = (Ledger::new(), [(); MACHINES].map(|()| free_port()));
        Self { number, dice, ledger, ports }
    }

    pub(super) async fn hold(mut self, fleet: Arc<Fleet>, clock: WallClock) -> History {
        let (lateness, ending) = (Lateness::watch(), CancellationToken::new());
        let mut machines = Vec::new();
        for number in 0..MACHINES {
            let clock = clock.another(&format!("clock-{}-{number}", self.number));
            clock.set(millis(self.dice.below(30_000)));
            machines.push(Machine::new(number, fleet.address_for(number), clock).await);
        }
        let asking = join_all(self.ports.map(|port| ask(port, &ending)));
        let leading = async {
            let ways = self.lead(&machines, &fleet).await;
            ending.cancel();
            ways
        };
        let (said, ways) = tokio::join!(asking, leading);
        let (notes, overlaps) = (self.ledger.notes(), self.ledger.overlaps());
        let said = said.into_iter().flatten().collect();
        let restarts = fleet.restarts();
        History { notes, overlaps, said, ways, restarts, late: lateness.of_request() }
    }

    /// Ends one leader after the other, and waits for the next; gives how each came to its end.
    async fn lead(&mut self, machines: &[Machine], fleet: &Fleet) -> Vec<(Note, Duration, Fault)> {
        let mut running: Vec<_> = machines.iter().map(|machine| self.start(machine)).collect();
        let mut ways = Vec::new();
        for term in 0..TERMS {
            let Some(leader) = self.ledger.begun(term, TTL * 4).await else { break };
            pass(millis(self.dice.below(1500))).await;
            // It leads on under the same lease.
            if self.dice.below(3) == 0 {
                fleet.restart_any(&mut self.dice).await;
            }
            let way = ENDS[self.dice.below(ENDS.len() as u64) as usize];
            let time = TTL + millis(500 + self.dice.below(1500));
            let (machine, at) = (&machines[leader.machine], now());
            let end = machine.suffer(way, &running[leader.machine], time);
            tokio::join!(end, self.ledger.begun(term + 1, TTL * 4));
            ways.push((leader, at, way));
            if !matches!(way, Fault::Pause | Fault::Cut) {
                pass(AWAY).await;
                let next = self.start(machine);
                std::mem::replace(&mut running[leader.machine], next).ended().await;
            }
        }
        for one in running {
            one.signal(Signal::SIGTERM);
            one.ended().await;
        }
        ways
    }

    fn start(&self, machine: &Machine) -> Running {
        let (ttl, port, number) = (TTL.as_millis(), self.ports[machine.number], self.number);
        let line = format!(
            "exec \"$0\" elect --ttl {ttl}ms --owner \"http://$MACHINE\" \
             --listen 127.0.0.1:{port} jobs-{number} -- sh -c \"$1\""
        );
        machine.start(&line, &self.ledger.script("note begin; exec sleep 1000"))
    }
}

/// Asks a machine again and again whether it leads; gives when it said so.
async fn ask(port: u16, ending: &CancellationToken) -> Vec<Saying> {
    let http = Client::builder().no_proxy().timeout(LIMIT).build().expect("a client");
    let url = format!("http://127.0.0.1:{port}/leader");
    let mut said = Vec::new();
    while ending.run_until_cancelled(pass(LOOK)).await.is_some() {
        let sent = now();
        let Ok(response) = http.get(&url).send().await else { continue };
        let leads = response.status() == 200;
        let Ok(text) = response.text().await else { continue };
        if leads {
            let fencing_token = text.trim().parse().expect("a fencing token");
            said.push(Saying { fencing_token, sent, read: now() });
        }
    }
    said
}
