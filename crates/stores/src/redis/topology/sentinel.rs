//! The master that sentinels name.
//!
//! Sentinels number failovers, and a majority of them votes for each. So the report with the
//! highest number counts, and a master is looked up again at once when a sentinel publishes a
//! failover.
//!
//! Invariant: a report of an older failover never replaces a newer master, unless a majority
//! replied (sentinels that were set up again count from the beginning). Tested below, and over real
//! sentinels by the tests of failover.

use std::collections::HashMap;
use std::future::pending;
use std::time::Duration;

use bb8_redis::redis::{RedisError, RedisResult, pipe};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::super::client::{Address, Messages, RedisClient};
use super::super::url::{self, bad};
use super::masters::{MasterId, TopologyView};
use super::source::{MasterLookupError, TopologySource};
use crate::error::OpenError;
use crate::settings::RedisSettings;
use keylatch_core::lock::LockName;

const DEFAULT_PORT: u16 = 26_379;
/// How long a lookup waits for further replies once most sentinels have replied, and agree.
const GRACE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Sentinels {
    master: String,
    sources: Vec<TopologySource>,
    /// The number of the latest failover that was reported.
    term: u64,
    /// What one of them publishes.
    messages: Option<Messages>,
    subscriptions: usize,
}

impl Sentinels {
    /// The sentinels of a URL, and a client of any master that they name:
    /// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,…]/MASTER[/DB]`, where the credentials are
    /// those of the master. Those of the sentinels, if they have any, are `?sentinel_user=…` and
    /// `sentinel_password=…`.
    pub(super) fn parse(
        url: &str,
        settings: &RedisSettings,
    ) -> Result<(Self, RedisClient), OpenError> {
        let url = url::parse(url).map_err(bad)?;
        let (master, database) = url.path.split_once('/').unwrap_or((url.path, ""));
        if master.is_empty() {
            return Err(bad("it needs the master's name, as in `redis+sentinel://a,b,c/mymaster`"));
        }
        let [user, password] =
            url.parameters(["sentinel_user", "sentinel_password"]).map_err(bad)?;
        let credentials = match (user, password) {
            (None, None) => String::new(),
            (user, password) => {
                format!("{}:{}@", user.unwrap_or_default(), password.unwrap_or_default())
            }
        };
        let certificates = url.certificates.clone().unwrap_or_default();
        let client = |url: &str| RedisClient::of(url, &certificates, settings);
        let urls = url.hosts.iter();
        let urls = urls.map(|host| url.of_host_as(&credentials, &host.with_port(DEFAULT_PORT)));
        let sources = urls.map(|url| client(&url).map(TopologySource::new));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let of_master = client(&url.of_host(url.hosts[0].text, database))?;
        let master = master.to_owned();
        let (term, messages, subscriptions) = (0, None, 0);
        Ok((Self { master, sources, term, messages, subscriptions }, of_master))
    }

    /// Asks all sentinels, and takes the report of the latest failover, for which a majority of
    /// them voted.
    pub(super) async fn look_up(&mut self) -> Result<TopologyView, MasterLookupError> {
        let (all, most) = (self.sources.len(), self.sources.len() / 2 + 1);
        let mut queries: FuturesUnordered<_> =
            self.sources.iter_mut().map(|source| named_master(source, &self.master)).collect();
        let (mut reports, mut last_error) = (Vec::new(), None);
        loop {
            let next = if reports.len() < most || is_split(&reports) {
                queries.next().await
            } else {
                timeout(GRACE, queries.next()).await.ok().flatten()
            };
            match next {
                Some(Ok(report)) => reports.push(report),
                Some(Err(error)) => last_error = Some(error),
                None => break,
            }
        }
        drop(queries);
        let replies = reports.len();
        if replies == all && reports.iter().all(Option::is_none) {
            return Err(MasterLookupError::UnknownName(self.master.clone()));
        }
        let (address, term) = latest(&reports.into_iter().flatten().collect::<Vec<_>>())
            .ok_or_else(|| MasterLookupError::of(last_error))?;
        // Sentinels that were set up again count from the beginning; then most of them reply so.
        if term < self.term && replies < most {
            return Err(MasterLookupError::NoReply("only of an older master".into()));
        }
        self.term = term;
        let master: MasterId = (address, term);
        let owners = vec![Some(master.clone()); LockName::BUCKETS];
        Ok(TopologyView { masters: vec![master], owners })
    }

    /// Resolves when a sentinel publishes another master, or may have.
    pub(super) async fn hint(&mut self) {
        if self.messages.is_none() {
            let client = &self.sources[self.subscriptions % self.sources.len()].client;
            self.subscriptions += 1;
            // The sentinel that leads a failover publishes the first, the others the second at that
            // time.
            self.messages = client.subscribe(&["+promoted-slave", "+switch-master"]).await.ok();
        }
        match &mut self.messages {
            Some(messages) => {
                if messages.next().await.is_none() {
                    self.messages = None;
                }
            }
            None => pending().await,
        }
    }
}

/// The master of the latest failover. When failovers follow each other closely, a sentinel may
/// report the number of one with the master of another. Then it is the master that most reports
/// name, and of as many the same one each time.
fn latest(reports: &[MasterId]) -> Option<MasterId> {
    let term = reports.iter().map(|(_, term)| *term).max()?;
    let count = |id: &MasterId| reports.iter().filter(|report| *report == id).count();
    let last = reports.iter().filter(|(_, of)| *of == term);
    last.max_by_key(|id| (count(id), *id)).cloned()
}

/// Whether several masters have the latest number: one more report may then decide which of them it
/// is, and instances that read other reports would use another master.
fn is_split(reports: &[Option<MasterId>]) -> bool {
    let term = reports.iter().flatten().map(|(_, term)| term).max();
    let mut last = reports.iter().flatten().filter(|(_, of)| Some(of) == term);
    let first = last.next();
    last.any(|id| Some(id) != first)
}

/// The master that a sentinel names; `None` when it knows none of that name.
///
/// A sentinel that leads a failover has the number of the new master with the address of the old
/// one in `SENTINEL MASTER`, until all replicas are moved: only the address by name goes with the
/// number. The number is read first, so that a change in between makes the report look older than
/// it is.
async fn named_master(
    source: &mut TopologySource,
    master: &str,
) -> Result<Option<MasterId>, RedisError> {
    let mut questions = pipe();
    questions.cmd("SENTINEL").arg("MASTER").arg(master);
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master).ignore_errors();
    let (found, address): (RedisResult<HashMap<String, String>>, RedisResult<Option<Address>>) =
        source.query(&questions).await?;
    let found = match found {
        Err(error) if error.code() == Some("ERR") => return Ok(None),
        found => found?,
    };
    let term = found.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    Ok(address?.map(|address| (address, term.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_failover_of_most_reports_names_the_master() {
        let name = |host: &str, term| ((host.to_owned(), 6379), term);
        let (old, new, odd) = (name("a", 1), name("b", 2), name("c", 2));
        for reports in
            [[&old, &new, &new], [&new, &odd, &new], [&new, &new, &odd], [&old, &old, &new]]
        {
            assert_eq!(latest(&reports.map(Clone::clone)), Some(new.clone()), "{reports:?}");
        }
        let either = |one: &MasterId, other: &MasterId| latest(&[one.clone(), other.clone()]);
        assert_eq!(either(&new, &odd), either(&odd, &new));
        assert_eq!(latest(&[]), None);
    }
}
