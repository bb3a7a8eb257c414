//! The masters of a cluster: `CLUSTER NODES` of several nodes, put together.
//!
//! Any node knows of all, but one may be late. So for each slot the claim of the highest epoch
//! counts, as it does among the nodes themselves.
//!
//! Tested below against the cluster specification, and over a real cluster whose slots move.

use std::collections::{BTreeMap, BTreeSet};

use bb8_redis::redis::{RedisError, pipe};
use futures_util::future::join_all;

use super::super::client::{Address, PORT, RedisClient};
use super::super::url::{self, bad};
use super::masters::{MasterId, TopologyView};
use super::source::{MasterLookupError, TopologySource};
use crate::error::OpenError;
use crate::settings::RedisSettings;
use keylatch_core::lock::LockName;

const SOURCES_PER_LOOKUP: usize = 5;

/// The nodes of a cluster, which report the masters of all slots.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The nodes of the URL, and the masters that were found since.
    sources: BTreeMap<Address, TopologySource>,
    seeds: Vec<Address>,
    /// How many lookups there were: each asks other nodes.
    lookups: usize,
}

impl Cluster {
    /// The cluster of a URL: `redis+cluster://[USER:PASSWORD@]HOST[:PORT][,…]`, and a client of any
    /// of its nodes.
    pub(super) fn parse(
        url: &str,
        settings: &RedisSettings,
    ) -> Result<(Self, RedisClient), OpenError> {
        let url = url::parse(url).map_err(bad)?;
        if !matches!(url.path, "" | "0") {
            return Err(bad("a cluster has no database but 0"));
        }
        let [] = url.parameters([]).map_err(bad)?;
        let certificates = url.certificates.clone().unwrap_or_default();
        let client =
            RedisClient::of(&url.of_host(url.hosts[0].text, "0"), &certificates, settings)?;
        let seeds = url.hosts.iter().map(|host| (host.name.to_owned(), host.port.unwrap_or(PORT)));
        let seeds: Vec<Address> = seeds.collect();
        let source = |seed: &Address| (seed.clone(), TopologySource::new(client.at(seed)));
        let sources = seeds.iter().map(source).collect();
        Ok((Self { sources, seeds, lookups: 0 }, client))
    }

    /// Asks some nodes, and takes for each slot the claim of the highest epoch.
    pub(super) async fn look_up(
        &mut self,
        client: &RedisClient,
    ) -> Result<TopologyView, MasterLookupError> {
        let (count, uses_tls) = (self.sources.len(), client.uses_tls());
        let first = self.lookups % count;
        self.lookups += 1;
        let queries = self.sources.iter_mut().enumerate().filter_map(|(at, (address, source))| {
            let chosen = (at + count - first) % count < SOURCES_PER_LOOKUP;
            chosen.then_some(async move { (address.clone(), cluster_nodes(source).await) })
        });
        let mut claims = Claims::default();
        let mut last_error = None;
        for (address, reply) in join_all(queries).await {
            match reply {
                Ok(text) => text.lines().for_each(|line| claims.add(line, &address, uses_tls)),
                Err(error) => last_error = Some(error),
            }
        }
        let view = claims.view();
        if view.masters.is_empty() {
            return Err(MasterLookupError::of(last_error));
        }
        self.remember(&view, client);
        Ok(view)
    }

    /// Keeps these masters as sources, and the nodes of the URL.
    fn remember(&mut self, view: &TopologyView, client: &RedisClient) {
        self.sources.retain(|address, _| {
            self.seeds.contains(address) || view.masters.iter().any(|(master, _)| master == address)
        });
        for (master, _) in &view.masters {
            let new = || TopologySource::new(client.at(master));
            self.sources.entry(master.clone()).or_insert_with(new);
        }
    }
}

async fn cluster_nodes(source: &mut TopologySource) -> Result<String, RedisError> {
    let mut question = pipe();
    question.cmd("CLUSTER").arg("NODES").ignore_errors();
    let (text,) = source.query(&question).await?;
    text
}

/// What masters claim, as some of the nodes report it.
#[derive(Default)]
struct Claims {
    /// Masters that have not failed, with slots or without.
    healthy: BTreeSet<Address>,
    /// The best claim on each bucket, with its epoch.
    buckets: BTreeMap<u8, (u64, Address)>,
}

impl Claims {
    /// Adds a line of `CLUSTER NODES`: `id address flags master ping pong epoch link slot…`.
    fn add(&mut self, line: &str, reporter: &Address, uses_tls: bool) {
        let fields: Vec<_> = line.split(' ').collect();
        let [_, address, flags, _, _, _, epoch, _, slots @ ..] = &fields[..] else { return };
        let (Some(address), Ok(epoch)) =
            (parse_address(address, reporter, uses_tls), epoch.parse())
        else {
            return;
        };
        let has = |flag| flags.split(',').any(|found| found == flag);
        if !has("master") || has("noaddr") || has("handshake") {
            return;
        }
        // A master without slots may get some; one that has failed may have lost them all.
        if !has("fail") && !has("fail?") {
            self.healthy.insert(address.clone());
        }
        // A claim on slots that are moving is in brackets: until the end they are where they were.
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

    fn view(self) -> TopologyView {
        // An epoch changes when slots move, and connections stay then: a node has one term.
        let named = |address: Address| -> MasterId { (address, 0) };
        let mut masters = self.healthy;
        let mut owners = vec![None; LockName::BUCKETS];
        for (bucket, (_, address)) in self.buckets {
            masters.insert(address.clone());
            owners[usize::from(bucket)] = Some(named(address));
        }
        TopologyView { masters: masters.into_iter().map(named).collect(), owners }
    }
}

/// `HOST:PORT@BUS[,NAME[,…]]`. A node that does not know its own host reports none: it is where the
/// reporter is.
fn parse_address(text: &str, reporter: &Address, uses_tls: bool) -> Option<Address> {
    let mut parts = text.split(',');
    let (address, name) = (parts.next()?, parts.next().unwrap_or_default());
    let (host, port) = address.split('@').next()?.rsplit_once(':')?;
    // A certificate is for a name.
    let host = if uses_tls && !name.is_empty() { name } else { host };
    let host = if host.is_empty() { &reporter.0 } else { host };
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
    fn bucket_slots_match_the_cluster_specification() {
        // By the cluster specification, and by `CLUSTER KEYSLOT {3f}`.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!([slot(0x3f), slot(0x00), slot(0xff)], [7334, 13_254, 11_756]);
    }

    #[test]
    fn slot_belongs_to_the_claim_of_the_highest_epoch() {
        let reporter = ("reporter".to_owned(), 1);
        let lines = [
            "a 10.0.0.1:7000@17000,old master - 0 0 3 connected 0-16383",
            "b :7001@17001 myself,master - 0 0 7 connected 0-9000 [77-<-a]",
            "c 10.0.0.3:7002@17002 slave b 0 0 9 connected",
            "d 10.0.0.4:7003@17003 master,noaddr - 0 0 9 connected 0-16383",
            "e [::1]:7004@17004 master - 0 0 0 connected",
        ];
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
            let mut claims = Claims::default();
            order.iter().for_each(|line| claims.add(lines[*line], &reporter, false));
            let view = claims.view();
            // Neither the one without an address nor the replica.
            let hosts: Vec<_> = view.masters.iter().map(|((host, _), _)| host.as_str()).collect();
            assert_eq!(hosts, ["10.0.0.1", "[::1]", "reporter"]);
            for bucket in 0..=u8::MAX {
                let owner = view.owners[usize::from(bucket)].clone().unwrap();
                let expected = if slot(bucket) <= 9000 { "reporter" } else { "10.0.0.1" };
                assert_eq!(owner.0.0, expected, "{bucket}");
            }
        }
    }
}
