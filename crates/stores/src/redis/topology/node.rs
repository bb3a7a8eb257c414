use std::collections::BTreeMap;
use std::sync::Arc;

use bb8_redis::redis::ConnectionAddr::{Tcp, TcpTls};
use bb8_redis::redis::{Client, ConnectionInfo, IntoConnectionInfo as _};
use tokio_util::sync::CancellationToken;

use super::super::pool::{self, Pool};
use super::super::{OpenError, Settings};
use keylatch_core::lock::LockName;

/// A master for as long as it is one.
///
/// Its connections end with it: one that was demoted, stopped or cut off and comes back knows nothing
/// of what was granted since, so nothing is ever asked or heard of it again over an old connection.
#[derive(Debug)]
pub(in super::super) struct Node {
    pub(in super::super) pool: Pool,
    left: CancellationToken,
}

impl Node {
    fn new(client: Client, settings: &Settings) -> Self {
        let left = CancellationToken::new();
        Self { pool: Pool::until(left.clone(), client, settings), left }
    }

    /// Breaks every connection at once.
    pub(super) fn leave(&self) {
        self.left.cancel();
    }

    /// Resolves when the node is left.
    pub(super) fn left(&self) -> CancellationToken {
        self.left.clone()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A master as it is called: where it is, and which of its terms this is. One that was left and is
/// master again has a term of its own, where terms are told apart.
pub(super) type Name = (Address, u64);

/// A host and a port.
pub(super) type Address = (String, u16);

/// Who is master of what, as it was found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    /// All masters, those without a bucket too.
    pub(super) masters: Vec<Name>,
    /// For each bucket, the master that has it.
    pub(super) owners: Vec<Option<Name>>,
}

impl View {
    /// One master has all buckets.
    pub(super) fn of_one(master: Name) -> Self {
        Self { owners: vec![Some(master.clone()); LockName::BUCKETS], masters: vec![master] }
    }
}

/// The masters with their connections.
#[derive(Debug, Default)]
pub(super) struct Map {
    nodes: BTreeMap<Name, Arc<Node>>,
    owners: Vec<Option<Arc<Node>>>,
}

impl Map {
    /// The masters of a view. Those of this map that still are keep their connections, and all others
    /// are left.
    pub(super) fn turned_into(&self, view: &View, way: &Way) -> Self {
        let nodes: BTreeMap<_, _> = (view.masters.iter())
            .filter_map(|name| {
                let known = self.nodes.get(name).filter(|node| !node.left.is_cancelled());
                let node = known.map(Arc::clone).or_else(|| way.node(&name.0).map(Arc::new))?;
                Some((name.clone(), node))
            })
            .collect();
        for (name, node) in &self.nodes {
            if !nodes.get(name).is_some_and(|kept| Arc::ptr_eq(kept, node)) {
                node.leave();
            }
        }
        let owner = |name: &Option<Name>| name.as_ref().and_then(|name| nodes.get(name).cloned());
        Self { owners: view.owners.iter().map(owner).collect(), nodes }
    }

    pub(super) fn owner(&self, bucket: u8) -> Option<Arc<Node>> {
        self.owners.get(usize::from(bucket)).cloned().flatten()
    }

    /// The masters that have a bucket.
    pub(super) fn masters(&self) -> Vec<(&Name, &Arc<Node>)> {
        let has_bucket =
            |node: &Arc<Node>| self.owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, node));
        self.nodes.iter().filter(|(_, node)| has_bucket(node)).collect()
    }

    /// The master at an address, whether it has a bucket or not.
    pub(super) fn at(&self, address: &Address) -> Option<Arc<Node>> {
        let mut nodes = self.nodes.iter();
        nodes.find(|((known, _), _)| known == address).map(|(_, node)| Arc::clone(node))
    }

    /// Whether every master is still used.
    pub(super) fn is_whole(&self) -> bool {
        self.nodes.values().all(|node| !node.left.is_cancelled())
    }
}

/// How servers are connected to, whichever they are: credentials, database, TLS.
#[derive(Debug, Clone)]
pub(super) struct Way {
    info: ConnectionInfo,
    pub(super) settings: Settings,
}

impl Way {
    /// The way that `url` tells, to its own host or to any other.
    pub(super) fn new(url: &str, settings: &Settings) -> Result<Self, OpenError> {
        let info = pool::client(url, settings)?.get_connection_info().clone();
        Ok(Self { info, settings: settings.clone() })
    }

    /// The server that the URL itself names.
    pub(super) fn address(&self) -> Option<Address> {
        match self.info.addr() {
            Tcp(host, port) | TcpTls { host, port, .. } => Some((host.clone(), *port)),
            _ => None,
        }
    }

    pub(super) fn uses_tls(&self) -> bool {
        matches!(self.info.addr(), TcpTls { .. })
    }

    pub(super) fn client(&self, (host, port): &Address) -> Option<Client> {
        let mut address = self.info.addr().clone();
        match &mut address {
            Tcp(known_host, known_port) | TcpTls { host: known_host, port: known_port, .. } => {
                known_host.clone_from(host);
                *known_port = *port;
            }
            _ => return None,
        }
        let info = self.info.clone().set_addr(address).into_connection_info();
        info.and_then(Client::open).ok()
    }

    fn node(&self, address: &Address) -> Option<Node> {
        Some(Node::new(self.client(address)?, &self.settings))
    }

    /// Whether the server at an address is fit to keep locks, as far as it answers.
    pub(super) async fn check(&self, address: &Address) -> Result<(), OpenError> {
        match self.client(address) {
            Some(client) => pool::check(client, &self.settings).await,
            None => Ok(()),
        }
    }
}
