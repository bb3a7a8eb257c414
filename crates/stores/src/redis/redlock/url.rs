use std::collections::BTreeSet;

use crate::OpenError;

/// The fewest nodes of which a majority stands the loss of one.
const FEWEST: usize = 3;
/// The most nodes: every one of them is asked each time.
pub(super) const MOST: usize = 31;
const PORT: &str = ":6379";

/// Where a node is, for people, and its URL.
pub(super) type Place = (String, String);

/// The nodes of `redlock://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/DB]`.
pub(super) fn places(url: &str) -> Result<Vec<Place>, OpenError> {
    let bad = |why: &str| OpenError::BadRedlock(why.to_owned());
    let rest = url.strip_prefix("redlock://").ok_or_else(|| bad("it begins with `redlock://`"))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let hosts: Vec<_> = hosts.split(',').map(with_port).collect();
    if hosts.iter().any(|host| host == PORT) {
        return Err(bad("a host is missing between two commas"));
    }
    if !(FEWEST..=MOST).contains(&hosts.len()) {
        return Err(bad("it takes 3 to 31 nodes, with commas between them"));
    }
    if hosts.iter().collect::<BTreeSet<_>>().len() < hosts.len() {
        return Err(bad("a node is there twice, and would vote twice"));
    }
    let url = |host: &String| format!("redis://{user}{host}/{path}");
    Ok(hosts.iter().map(|host| (host.clone(), url(host))).collect())
}

fn with_port(host: &str) -> String {
    // The colons of an IPv6 address are within its brackets.
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    if has_port { host.to_owned() } else { format!("{host}{PORT}") }
}
