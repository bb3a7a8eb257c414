use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bb8_redis::redis::{RedisError, pipe};
use futures_util::future::join_all;

use super::super::url::{InvalidUrl, MultiHostUrl};
use super::super::{OpenError, Settings};
use super::informant::Informant;
use super::node::{Address, Name, View, Way};
use super::sentinel::Silence;
use keylatch_core::lock::LockName;

/// How many nodes are asked at a time. Any of them knows of all, and what one knows late is
/// outweighed by what another knows already.
const ASKED: usize = 5;

/// The nodes of a cluster, which say who is master of which slots.
pub(super) struct Cluster {
    way: Arc<Way>,
    /// Those of the URL, and the masters that were found since.
    informants: BTreeMap<Address, Informant>,
    seeds: Vec<Address>,
    /// How often was asked: others each time.
    rounds: usize,
}

impl Cluster {
    /// The cluster of a URL: `redis+cluster://[USER:PASSWORD@]HOST[:PORT][,…]`.
    pub(super) fn parse(url: &str, settings: &Settings) -> Result<(Self, Arc<Way>), OpenError> {
        let url = MultiHostUrl::parse(url)?;
        if !matches!(url.path, "" | "0") {
            return Err(InvalidUrl("a cluster has no database but 0").into());
        }
        let [] = url.parameters([])?;
        let way = Arc::new(Way::new(&url.of_host(url.hosts[0], "0"), settings)?);
        let mut informants = BTreeMap::new();
        for host in &url.hosts {
            let seed = Way::new(&url.of_host(host, "0"), settings)?;
            let address = seed.address().ok_or(InvalidUrl("it needs hosts"))?;
            let client = way.client(&address).ok_or(InvalidUrl("it needs hosts"))?;
            informants.insert(address, Informant::new(client));
        }
        let seeds = informants.keys().cloned().collect();
        Ok((Self { way: Arc::clone(&way), informants, seeds, rounds: 0 }, way))
    }

    /// Asks some nodes, and takes for each slot the claim of the highest epoch, as the nodes do
    /// themselves.
    pub(super) async fn ask(&mut self) -> Result<View, Silence> {
        let (count, uses_tls) = (self.informants.len(), self.way.uses_tls());
        let first = self.rounds % count;
        self.rounds += 1;
        let asked = self.informants.iter_mut().enumerate().filter_map(|(at, (address, node))| {
            let chosen = (at + count - first) % count < ASKED;
            chosen.then_some(async move { (address.clone(), ask(node).await) })
        });
        let mut claims = Claims::default();
        let mut silence = None;
        for (address, told) in join_all(asked).await {
            match told {
                Ok(told) => told.lines().for_each(|line| claims.add(line, &address, uses_tls)),
                Err(error) => silence = Some(error),
            }
        }
        let view = claims.view();
        if view.masters.is_empty() {
            return Err(Silence::of(silence));
        }
        self.remember(&view);
        Ok(view)
    }

    /// Goes on with these masters, and with the nodes of the URL.
    fn remember(&mut self, view: &View) {
        self.informants.retain(|address, _| {
            self.seeds.contains(address) || view.masters.iter().any(|(master, _)| master == address)
        });
        for (master, _) in &view.masters {
            if !self.informants.contains_key(master)
                && let Some(client) = self.way.client(master)
            {
                self.informants.insert(master.clone(), Informant::new(client));
            }
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.seeds.len()).finish_non_exhaustive()
    }
}

async fn ask(node: &mut Informant) -> Result<String, RedisError> {
    let mut question = pipe();
    question.cmd("CLUSTER").arg("NODES").ignore_errors();
    let (told,) = node.ask(&question).await?;
    told
}

/// Who says to be master of what, by some of the nodes.
#[derive(Default)]
struct Claims {
    healthy: BTreeSet<Address>,
    /// The best claim on each bucket, with its epoch.
    buckets: BTreeMap<u8, (u64, Address)>,
}

impl Claims {
    /// Takes in a line of `CLUSTER NODES`: `id address flags master ping pong epoch link slot…`.
    fn add(&mut self, line: &str, teller: &Address, uses_tls: bool) {
        let fields: Vec<_> = line.split(' ').collect();
        let [_, address, flags, _, _, _, epoch, _, slots @ ..] = &fields[..] else { return };
        let (Some(address), Ok(epoch)) = (parse_address(address, teller, uses_tls), epoch.parse())
        else {
            return;
        };
        let has = |flag| flags.split(',').any(|found| found == flag);
        if !has("master") || has("noaddr") || has("handshake") {
            return;
        }
        // One that has nothing yet may be given something; one that has failed may have lost it all.
        if !has("fail") && !has("fail?") {
            self.healthy.insert(address.clone());
        }
        // A claim on slots that just move is in brackets; they are where they were until then.
        for slots in slots.iter().filter(|slots| !slots.starts_with('[')) {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            let (Ok(first), Ok(last)) = (first.parse(), last.parse()) else { continue };
            for bucket in (0..=u8::MAX).filter(|bucket| (first..=last).contains(&slot(*bucket))) {
                let claim = self.buckets.entry(bucket).or_insert_with(|| (epoch, address.clone()));
                if claim.0 < epoch {
                    *claim = (epoch, address.clone());
                }
            }
        }
    }

    fn view(self) -> View {
        // An epoch changes when slots move, and their connections stay: a node has one term.
        let named = |address: Address| -> Name { (address, 0) };
        let mut masters = self.healthy;
        let mut owners = vec![None; LockName::BUCKETS];
        for (bucket, (_, address)) in self.buckets {
            masters.insert(address.clone());
            owners[usize::from(bucket)] = Some(named(address));
        }
        View { masters: masters.into_iter().map(named).collect(), owners }
    }
}

/// `HOST:PORT@BUS[,NAME[,…]]`. A node that does not know its own host has none to tell.
fn parse_address(text: &str, teller: &Address, uses_tls: bool) -> Option<Address> {
    let mut parts = text.split(',');
    let (address, name) = (parts.next()?, parts.next().unwrap_or_default());
    let (host, port) = address.split('@').next()?.rsplit_once(':')?;
    // A certificate is for a name.
    let host = if uses_tls && !name.is_empty() { name } else { host };
    let host = if host.is_empty() { &teller.0 } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

/// The slot of all keys of a bucket, whose hash tag it is.
fn slot(bucket: u8) -> u16 {
    crc16(format!("{bucket:02x}").as_bytes()) % 16_384
}

/// CRC-16/XMODEM, by which a cluster spreads its keys.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // Of the cluster specification, and as `CLUSTER KEYSLOT {3f}` says.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!([slot(0x3f), slot(0x00), slot(0xff)], [7334, 13_254, 11_756]);
    }

    #[test]
    fn the_highest_epoch_has_the_slot() {
        let teller = ("teller".to_owned(), 1);
        let lines = [
            "a 10.0.0.1:7000@17000,old master - 0 0 3 connected 0-16383",
            "b :7001@17001 myself,master - 0 0 7 connected 0-9000 [77-<-a]",
            "c 10.0.0.3:7002@17002 slave b 0 0 9 connected",
            "d 10.0.0.4:7003@17003 master,noaddr - 0 0 9 connected 0-16383",
            "e [::1]:7004@17004 master - 0 0 0 connected",
        ];
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
            let mut claims = Claims::default();
            order.iter().for_each(|line| claims.add(lines[*line], &teller, false));
            let view = claims.view();
            // The one without an address is none, and the one that is a replica neither.
            let hosts: Vec<_> = view.masters.iter().map(|((host, _), _)| host.as_str()).collect();
            assert_eq!(hosts, ["10.0.0.1", "[::1]", "teller"]);
            for bucket in 0..=u8::MAX {
                let owner = view.owners[usize::from(bucket)].clone().unwrap();
                let expected = if slot(bucket) <= 9000 { "teller" } else { "10.0.0.1" };
                assert_eq!(owner.0.0, expected, "{bucket}");
            }
        }
    }
}
