//! The held locks, page by page.
//!
//! The keys of one node after the other are scanned, of so many nodes that every quorum has one
//! among them. Each name that is found is looked at on all nodes, and listed if a quorum has it. A
//! lock is listed with the first scanned node that has it, so that it is there once; a lock that
//! comes to a node after that node's scan may be missed.
//!
//! Invariant: a lock that is held throughout is on at least one page. Tested over real nodes, by
//! the tests of Redlock and by the conformance tests of listing.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::round::{MAX_NODES, Nodes};
use super::votes::{Decision, Votes, no_quorum};
use crate::redis::list::scan;
use keylatch_core::lock::{Holder, LockName};
use keylatch_core::store::{Cursor, ListLocks, Page, StoreError};

/// How many locks are looked at together, at most.
const LOOK_BATCH: usize = 250;
/// How many scan steps one page may cost; a page that finds little ends early.
const STEPS_PER_PAGE: usize = 32;

/// A page of the locks that a quorum has; `None` for a cursor of another store.
pub(super) async fn page(
    nodes: &Arc<Nodes>,
    query: &ListLocks,
) -> Result<Option<Page<Holder>>, StoreError> {
    let Some(mut at) = ScanPosition::of(query.cursor.as_ref()) else { return Ok(None) };
    let mut locks: Vec<Holder> = Vec::new();
    for _ in 0..STEPS_PER_PAGE {
        let scanned = at.scanned.count_ones() as usize;
        if scanned > nodes.all.len() - nodes.quorum {
            return Ok(Some(Page { entries: locks, next: None }));
        }
        if at.node >= nodes.all.len() {
            return Err(no_quorum(scanned, nodes.all.len(), false, None));
        }
        let Some((following, names)) = scan_step(nodes, query, &at).await else {
            at = at.next_node(false);
            continue;
        };
        let room = query.limit - locks.len();
        let (found, last) = held_by_quorum(nodes, &names, at.scanned, room).await?;
        locks.extend(found);
        at = match last {
            Some(last) => ScanPosition { after: Some(last), ..at },
            None if following == 0 => at.next_node(true),
            None => ScanPosition { step: following, after: None, ..at },
        };
        if locks.len() == query.limit {
            break;
        }
    }
    Ok(Some(Page { entries: locks, next: at.cursor() }))
}

/// Where a listing continues.
#[derive(Debug, Clone, Default)]
struct ScanPosition {
    /// The nodes that were scanned to their end, a bit for each.
    scanned: u32,
    /// The node that is scanned now.
    node: usize,
    /// A step of its scan, and the last name taken of that step.
    step: u64,
    after: Option<LockName>,
}

impl ScanPosition {
    fn of(cursor: Option<&Cursor>) -> Option<Self> {
        let Some(cursor) = cursor else { return Some(Self::default()) };
        let mut parts = cursor.as_str().splitn(4, '.');
        let scanned = parts.next()?.parse().ok()?;
        let node = parts.next()?.parse().ok().filter(|node| *node <= MAX_NODES)?;
        let step = parts.next()?.parse().ok()?;
        let after = match URL_SAFE_NO_PAD.decode(parts.next().unwrap_or_default()).ok()? {
            none if none.is_empty() => None,
            name => Some(LockName::parse(std::str::from_utf8(&name).ok()?).ok()?),
        };
        Some(Self { scanned, node, step, after })
    }

    fn next_node(self, was_scanned: bool) -> Self {
        let bit = u32::from(was_scanned) << self.node;
        Self { scanned: self.scanned | bit, node: self.node + 1, ..Self::default() }
    }

    fn cursor(&self) -> Option<Cursor> {
        let Self { scanned, node, step, after } = self;
        let after = after.as_ref().map_or("", LockName::as_str);
        let after = URL_SAFE_NO_PAD.encode(after);
        Cursor::parse(&format!("{scanned}.{node}.{step}.{after}")).ok()
    }
}

/// One step of a node's scan: the following step, and the names that are left of this one; `None`
/// when the node does not reply in time.
async fn scan_step(
    nodes: &Nodes,
    query: &ListLocks,
    at: &ScanPosition,
) -> Option<(u64, Vec<LockName>)> {
    let node = nodes.all.get(at.node)?;
    let scanning = async {
        let mut shared = node.pool.check_out().await?;
        scan(&mut shared, &nodes.keys, query, at.step).await
    };
    let found = timeout(nodes.longest_time, scanning).await.ok()?;
    let (following, mut names) = found.ok()?;
    names.retain(|name| at.after.as_ref().is_none_or(|after| name > after));
    Some((following, names))
}

/// Those of the names that a quorum has and no node `before`, at most `room`; and the last name
/// that was looked at, if it is not the last of all.
async fn held_by_quorum(
    nodes: &Arc<Nodes>,
    names: &[LockName],
    before: u32,
    room: usize,
) -> Result<(Vec<Holder>, Option<LockName>), StoreError> {
    let (mut found, mut last, mut rest) = (Vec::new(), None, names);
    let mut size = room;
    while !rest.is_empty() {
        let (batch, following) = rest.split_at(size.clamp(1, LOOK_BATCH).min(rest.len()));
        let votes = join_all(batch.iter().map(|name| nodes.look(name, |_| false))).await;
        for (name, votes) in batch.iter().zip(votes) {
            if found.len() == room {
                return Ok((found, last));
            }
            found.extend(holder(name, votes, before)?);
            last = Some(name.clone());
        }
        // There may be many names that were listed before.
        (rest, size) = (following, size.saturating_mul(2));
        if found.len() == room && !rest.is_empty() {
            return Ok((found, last));
        }
    }
    Ok((found, None))
}

/// The holder that a quorum has, unless one of the nodes `before` has it too.
fn holder(name: &LockName, votes: Votes, before: u32) -> Result<Option<Holder>, StoreError> {
    match votes.decision() {
        Decision::Held => {}
        Decision::NotHeld => return Ok(None),
        Decision::Undecided => return Err(votes.error(false)),
    }
    let token = votes.held_grants().first().map(|grant| grant.token.clone());
    let was_listed = votes.reports.iter().any(|(node, report)| {
        let same = report.competing_grant().map(|grant| &grant.token) == token.as_ref();
        same && before & (1 << node) != 0
    });
    Ok(if was_listed { None } else { votes.holder(name) })
}
