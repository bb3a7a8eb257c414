//! What an ensemble is, asked of its members.
//!
//! A client learns nothing of the servers' version from the protocol; the command `srvr` says it,
//! which every member answers whatever its `4lw.commands.whitelist` says. A member that is down
//! says nothing. The tier is that of what ZooKeeper promises, `strict`: a majority has a write on
//! disk before it is answered. It is `fenced` where a member says a version that is known to lose
//! such writes: a write that is lost is one that the next leader did not have, and the fencing
//! token decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::store::{StoreHealth, Tier};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const ANSWER_LIMIT: Duration = Duration::from_millis(300);
const ANSWER_SIZE: u64 = 4096;

pub(super) async fn health(members: &[(String, u16)]) -> StoreHealth {
    let asked = members.iter().map(|(host, port)| read_status(host, *port));
    let answers: Vec<_> = join_all(asked).await;
    let members: Vec<_> = answers.iter().flatten().collect();
    let joined = |texts: BTreeSet<&str>| match texts.is_empty() {
        true => "unknown".to_owned(),
        false => texts.into_iter().collect::<Vec<_>>().join(", "),
    };
    let facts = BTreeMap::from([
        ("version", joined(members.iter().map(|(version, _)| &**version).collect())),
        ("modes", joined(members.iter().map(|(_, mode)| &**mode).collect())),
        ("instances", "not known".to_owned()),
        ("members_that_say", format!("{} of {}", members.len(), answers.len())),
    ]);
    let advice: BTreeSet<_> =
        members.iter().filter_map(|(version, _)| advice_on(version)).collect();
    let tier = if advice.is_empty() { Tier::Strict } else { Tier::Fenced };
    StoreHealth { id: None, tier, facts, advice: advice.into_iter().collect(), is_full: false }
}

async fn read_status(host: &str, port: u16) -> Option<(String, String)> {
    let asking = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(b"srvr").await?;
        let mut answer = String::new();
        stream.take(ANSWER_SIZE).read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    parse(&timeout(ANSWER_LIMIT, asking).await.ok()?.ok()?)
}

/// The version and the mode in a response to `srvr`.
fn parse(answer: &str) -> Option<(String, String)> {
    let after = |what: &str| answer.lines().find_map(|line| line.strip_prefix(what)).map(str::trim);
    let version = after("Zookeeper version:")?.split(['-', ',']).next().unwrap_or_default();
    Some((version.to_owned(), after("Mode:")?.to_owned()))
}

/// What is to be said of a version that has known ways to lose what was answered.
fn advice_on(version: &str) -> Option<String> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let number = (parts.next()??, parts.next()??, parts.next()??);
    let is_mended = number >= (3, 9, 4) || ((3, 8, 4)..(3, 9, 0)).contains(&number);
    let advice = "can lose writes that it has answered: run 3.8.4, 3.9.4 or newer";
    (!is_mended).then(|| format!("ZooKeeper {version} {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_given_for_versions_that_lose_writes() {
        for old in ["3.4.14", "3.7.2", "3.8.0", "3.8.3", "3.9.0", "3.9.3"] {
            assert!(advice_on(old).is_some_and(|advice| advice.contains(old)), "{old}");
        }
        for mended in ["3.8.4", "3.8.10", "3.9.4", "3.10.0", "unknown"] {
            assert_eq!(advice_on(mended), None, "{mended}");
        }
    }
}
