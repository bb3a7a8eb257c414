//! The URL of an ensemble: `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST…][/ROOT]`, and
//! `zookeepers://…[?cacert=PATH][&servername=NAME]` with TLS.
//!
//! The hosts and the path are those of a connect string of ZooKeeper's own clients; an `@` in the
//! path is written `%40`, because what is before the last one are the credentials. Errors say
//! nothing of the URL, which may hold a password. Tested here.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::conn::tls::Certificates;
use crate::conn::url::{MultiHostUrl, UrlHost};
use crate::error::OpenError;

const PORT: u16 = 2181;
/// The node below which everything is where the URL names none.
const ROOT: &str = "/keylatch";

#[derive(Debug, Clone)]
pub(super) struct Address {
    /// The members: name or address, and port.
    pub(super) hosts: Vec<(String, u16)>,
    /// Whom the ensemble is to let in; `None` for anyone.
    pub(super) user: Option<User>,
    /// The node below which everything is, without a slash at the end.
    pub(super) root: String,
    /// The certificates; `None` where connections are not encrypted.
    pub(super) security: Option<Certificates>,
}

/// A user and a password, as the digest scheme takes them.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User(String);

impl User {
    /// `USER:PASSWORD`.
    pub(super) fn expose(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("User(..)")
    }
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let url = MultiHostUrl::parse(url, "zookeepers").map_err(bad)?;
        let [] = url.parameters([]).map_err(bad)?;
        if url.certificates.as_ref().is_some_and(|certificates| certificates.identity.is_some()) {
            return Err(bad("its parameters are `cacert` and `servername`"));
        }
        let host = |host: &UrlHost<'_>| (host.name.to_owned(), host.port.unwrap_or(PORT));
        Ok(Self {
            hosts: url.hosts.iter().map(host).collect(),
            user: url.credentials.map(user_of).transpose()?,
            root: root_of(url.path)?,
            security: url.certificates,
        })
    }
}

/// A member as the client takes it.
pub(super) fn connect_string((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn user_of(text: &str) -> Result<User, OpenError> {
    let user = percent_decode_str(text).decode_utf8();
    let user = user.map_err(|_| bad("its user is not in UTF-8"))?;
    let has_both = text
        .split_once(':')
        .is_some_and(|(name, password)| !name.is_empty() && !password.is_empty());
    if has_both { Ok(User(user.into_owned())) } else { Err(bad("its user is not `USER:PASSWORD`")) }
}

fn root_of(path: &str) -> Result<String, OpenError> {
    let path = percent_decode_str(path).decode_utf8();
    let path = path.map_err(|_| bad("its path is not in UTF-8"))?;
    let path = path.strip_suffix('/').unwrap_or(&path);
    if path.is_empty() {
        return Ok(ROOT.to_owned());
    }
    let is_name = |name: &str| {
        !["", ".", ".."].contains(&name) && !name.chars().any(|c| c.is_control() || c == '\u{fffd}')
    };
    let names: Vec<_> = path.split('/').collect();
    if names.iter().any(|name| !is_name(name)) {
        return Err(bad("its path is not that of a node"));
    }
    if names.first() == Some(&"zookeeper") {
        return Err(bad("its path is ZooKeeper's own"));
    }
    Ok(format!("/{path}"))
}

fn bad(why: impl Into<String>) -> OpenError {
    OpenError::BadUrl("a ZooKeeper", why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_members_user_and_node() {
        let address =
            Address::parse("zookeeper://u%40x:p%2Fw:d@one,two:2182,[::1]:2183/team/locks/");
        let address = address.unwrap();
        let hosts: Vec<_> = address.hosts.iter().map(connect_string).collect();
        assert_eq!(hosts, ["one:2181", "two:2182", "[::1]:2183"]);
        assert_eq!(address.user.as_ref().map(User::expose), Some(&b"u@x:p/w:d"[..]));
        assert_eq!(address.root, "/team/locks");
        assert!(!format!("{address:?}").contains("p/w"), "a password is in the debug output");
        let plain = Address::parse("zookeeper://one").unwrap();
        assert_eq!((plain.user, &*plain.root), (None, "/keylatch"));
    }
}
