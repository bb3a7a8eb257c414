use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::aio::PubSubStream;
use bb8_redis::redis::{Client, ErrorKind, RedisError, RedisResult, pipe};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::super::url::{InvalidUrl, MultiHostUrl};
use super::super::{OpenError, Settings, pool};
use super::informant::Informant;
use super::node::{Address, Name, View, Way};

const DEFAULT_PORT: u16 = 26_379;
/// How long the last of the sentinels are waited for once most have answered, and agree.
const GRACE: Duration = Duration::from_millis(50);

/// The sentinels of a master, which say who it is.
pub(super) struct Sentinels {
    master: String,
    clients: Vec<Client>,
    informants: Vec<Informant>,
    /// The latest failover that was heard of. Sentinels number them, and by majority.
    term: u64,
    /// What one of them says by itself.
    said: Option<PubSubStream>,
    listened: usize,
}

impl Sentinels {
    /// The sentinels of a URL, and the way to whom they name:
    /// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,…]/MASTER[/DB]`, where the credentials are those
    /// of the master. Those of the sentinels, if they have any, are `?sentinel_user=…` and
    /// `sentinel_password=…`.
    pub(super) fn parse(url: &str, settings: &Settings) -> Result<(Self, Arc<Way>), OpenError> {
        let url = MultiHostUrl::parse(url)?;
        let (master, database) = url.path.split_once('/').unwrap_or((url.path, ""));
        if master.is_empty() {
            let why = "it needs the master's name, as in `redis+sentinel://a,b,c/mymaster`";
            return Err(InvalidUrl(why).into());
        }
        let [user, password] = url.parameters(["sentinel_user", "sentinel_password"])?;
        let credentials = match (user, password) {
            (None, None) => String::new(),
            (user, password) => {
                format!("{}:{}@", user.unwrap_or_default(), password.unwrap_or_default())
            }
        };
        let urls = url.hosts.iter().map(|host| url.of_host_as(&credentials, host, DEFAULT_PORT));
        let clients =
            urls.map(|url| pool::client(&url, settings)).collect::<Result<Vec<_>, _>>()?;
        let way = Arc::new(Way::new(&url.of_host(url.hosts[0], database), settings)?);
        let informants = clients.iter().cloned().map(Informant::new).collect();
        let master = master.to_owned();
        Ok((Self { master, clients, informants, term: 0, said: None, listened: 0 }, way))
    }

    /// Asks all of them, and takes the word of the one that knows of the latest failover: for each, a
    /// majority of them gave its vote.
    pub(super) async fn ask(&mut self) -> Result<View, Silence> {
        let (all, most) = (self.informants.len(), self.informants.len() / 2 + 1);
        let mut asking: FuturesUnordered<_> =
            self.informants.iter_mut().map(|informant| ask(informant, &self.master)).collect();
        let (mut words, mut silence) = (Vec::new(), None);
        loop {
            let next = if words.len() < most || is_split(&words) {
                asking.next().await
            } else {
                timeout(GRACE, asking.next()).await.ok().flatten()
            };
            match next {
                Some(Ok(word)) => words.push(word),
                Some(Err(error)) => silence = Some(error),
                None => break,
            }
        }
        drop(asking);
        let answers = words.len();
        if answers == all && words.iter().all(Option::is_none) {
            return Err(Silence::Unknown(self.master.clone()));
        }
        let (address, term) = latest(&words.into_iter().flatten().collect::<Vec<_>>())
            .ok_or_else(|| Silence::of(silence))?;
        // Sentinels that were set up anew count from the beginning, if most of them say so.
        if term < self.term && answers < most {
            return Err(Silence::Nobody("only of an older master".into()));
        }
        self.term = term;
        Ok(View::of_one((address, term)))
    }

    /// Resolves when one of them says that there is another master, or may have.
    pub(super) async fn hint(&mut self) {
        if self.said.is_none() {
            let client = &self.clients[self.listened % self.clients.len()];
            self.listened += 1;
            self.said = listen(client).await.ok();
        }
        match &mut self.said {
            Some(said) => {
                if said.next().await.is_none() {
                    self.said = None;
                }
            }
            None => pending().await,
        }
    }
}

/// The master of the latest failover. When failovers follow each other closely, a sentinel may have
/// one's number with another's master: then it is the one that most of them name, and of as many the
/// same one each time.
fn latest(words: &[Name]) -> Option<Name> {
    let term = words.iter().map(|(_, term)| *term).max()?;
    let named = |name: &Name| words.iter().filter(|word| *word == name).count();
    let last = words.iter().filter(|(_, of)| *of == term);
    last.max_by_key(|name| (named(name), *name)).cloned()
}

/// Whether several masters have the latest number: one more word may then decide which of them it is,
/// and instances that heard other words would not go by the same one.
fn is_split(words: &[Option<Name>]) -> bool {
    let term = words.iter().flatten().map(|(_, term)| term).max();
    let mut last = words.iter().flatten().filter(|(_, of)| Some(of) == term);
    let first = last.next();
    last.any(|name| Some(name) != first)
}

/// The master that a sentinel names; `None` when it knows none of that name.
///
/// A sentinel that leads a failover has the number of the new master with the address of the old one
/// in `SENTINEL MASTER`, until all replicas are moved: only the address by name goes with the number.
/// The number is asked first, so that a change in between makes the word older than it is.
async fn ask(informant: &mut Informant, master: &str) -> Result<Option<Name>, RedisError> {
    let mut questions = pipe();
    questions.cmd("SENTINEL").arg("MASTER").arg(master);
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master).ignore_errors();
    let (found, address): (RedisResult<HashMap<String, String>>, RedisResult<Option<Address>>) =
        informant.ask(&questions).await?;
    let found = match found {
        Err(error) if error.code() == Some("ERR") => return Ok(None),
        found => found?,
    };
    let term = found.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    Ok(address?.map(|address| (address, term.unwrap_or(0))))
}

async fn listen(client: &Client) -> Result<PubSubStream, RedisError> {
    let mut connection = client.get_async_pubsub().await?;
    // The first is said by the one that leads a failover, the second by the others at that time.
    connection.subscribe(&["+promoted-slave", "+switch-master"]).await?;
    Ok(connection.into_on_message())
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels").field("master", &self.master).finish_non_exhaustive()
    }
}

/// Why it is not known who is master.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error("none of the sentinels knows a master `{0}`")]
    Unknown(String),
    #[error("who is master is not told: {0}")]
    Refused(RedisError),
    #[error("who is master is not known: {0}")]
    Nobody(String),
}

impl Silence {
    /// Why nobody had a word, by the last one who was asked.
    pub(super) fn of(error: Option<RedisError>) -> Self {
        match error {
            Some(error) if is_refusal(&error) => Self::Refused(error),
            Some(error) => Self::Nobody(error.to_string()),
            None => Self::Nobody("no master".to_owned()),
        }
    }
}

/// Whether the same question will be refused again, unless somebody changes the configuration.
fn is_refusal(error: &RedisError) -> bool {
    let refusals = ["ERR", "NOAUTH", "NOPERM", "WRONGPASS"];
    error.kind() == ErrorKind::AuthenticationFailed
        || error.code().is_some_and(|code| refusals.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_with_the_latest_number_the_one_that_most_name_is_master() {
        let name = |host: &str, term| ((host.to_owned(), 6379), term);
        let (old, new, odd) = (name("a", 1), name("b", 2), name("c", 2));
        for words in
            [[&old, &new, &new], [&new, &odd, &new], [&new, &new, &odd], [&old, &old, &new]]
        {
            assert_eq!(latest(&words.map(Clone::clone)), Some(new.clone()), "{words:?}");
        }
        let either = |one: &Name, other: &Name| latest(&[one.clone(), other.clone()]);
        assert_eq!(either(&new, &odd), either(&odd, &new));
        assert_eq!(latest(&[]), None);
    }
}
