//! The masters with their connections.
//!
//! A [`MasterMap`] is a [`TopologyView`] with a pool for each master. A master that is no longer
//! one is **retired**: its connections break at once, and its later replies are ignored. A server
//! that was demoted, stopped or cut off and comes back knows nothing of the grants since, so no
//! command goes over an old connection to it.
//!
//! Tested over real failovers, by the tests of Sentinel and of Cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::super::client::{Address, RedisClient};
use super::super::pool::Pool;

/// A master for as long as it is one.
#[derive(Debug)]
pub(in super::super) struct Master {
    pub(in super::super) pool: Pool,
    retired: CancellationToken,
}

impl Master {
    /// Breaks every connection at once.
    pub(super) fn retire(&self) {
        self.retired.cancel();
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.retire();
    }
}

/// A master's address and its term. A server that was retired and is master again has another term,
/// where a topology counts terms.
pub(super) type MasterId = (Address, u64);

/// Which servers are masters of what, as a lookup found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopologyView {
    /// All masters, those without a bucket too.
    pub(super) masters: Vec<MasterId>,
    /// For each bucket, the master that has it.
    pub(super) owners: Vec<Option<MasterId>>,
}

/// The masters with their connections.
#[derive(Debug, Default)]
pub(super) struct MasterMap {
    masters: BTreeMap<MasterId, Arc<Master>>,
    owners: Vec<Option<Arc<Master>>>,
}

impl MasterMap {
    /// The masters of a view. Those of this map that are still masters keep their connections, and
    /// all others are retired. `client` is one of any server.
    pub(super) fn updated(&self, view: &TopologyView, client: &RedisClient) -> Self {
        let masters: BTreeMap<_, _> = (view.masters.iter())
            .map(|id| {
                let known = self.masters.get(id).filter(|master| !master.retired.is_cancelled());
                let new = || {
                    let retired = CancellationToken::new();
                    let pool = Pool::until(retired.clone(), client.at(&id.0));
                    Arc::new(Master { pool, retired })
                };
                (id.clone(), known.map_or_else(new, Arc::clone))
            })
            .collect();
        for (id, master) in &self.masters {
            if !masters.get(id).is_some_and(|kept| Arc::ptr_eq(kept, master)) {
                master.retire();
            }
        }
        let owner = |id: &Option<MasterId>| id.as_ref().and_then(|id| masters.get(id).cloned());
        Self { owners: view.owners.iter().map(owner).collect(), masters }
    }

    pub(super) fn owner(&self, bucket: u8) -> Option<Arc<Master>> {
        self.owners.get(usize::from(bucket)).cloned().flatten()
    }

    pub(super) fn owners(&self) -> Vec<(&MasterId, &Arc<Master>)> {
        let has_bucket = |master: &Arc<Master>| {
            self.owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, master))
        };
        self.masters.iter().filter(|(_, master)| has_bucket(master)).collect()
    }

    /// The master at an address, whether it has a bucket or not.
    pub(super) fn at(&self, address: &Address) -> Option<Arc<Master>> {
        let mut masters = self.masters.iter();
        masters.find(|((known, _), _)| known == address).map(|(_, master)| Arc::clone(master))
    }

    /// Whether no master is retired.
    pub(super) fn is_whole(&self) -> bool {
        self.masters.values().all(|master| !master.retired.is_cancelled())
    }
}
