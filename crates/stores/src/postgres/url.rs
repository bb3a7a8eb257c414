//! The URL of a PostgreSQL: `postgres://USER:PASSWORD@HOST[:PORT][,HOST…]/DB[?sslmode=…]`.
//!
//! The driver reads the URL. How the connection is kept secret is decided here, because the driver's modes
//! check no certificate: with several hosts, or one that is not this machine, a connection is encrypted and
//! the server's certificate checked, unless the URL says `sslmode=disable`.

use std::net::IpAddr;
use std::str::FromStr as _;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::OpenError;

/// The value of `sslmode` that is the default off loopback.
const VERIFY_FULL: &str = "verify-full";

/// What a URL comes to.
#[derive(Debug, Clone)]
pub(super) struct Address {
    pub(super) config: Config,
    /// Whether connections are encrypted, and the server's certificate is checked.
    pub(super) is_secure: bool,
}

impl Address {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// It is not a URL of PostgreSQL, or asks for a mode that checks no certificate. The error says
    /// nothing of the URL, which may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let (url, mode) = without_sslmode(url);
        let mut config =
            Config::from_str(&url).map_err(|error| bad(&without_value(&error.to_string())))?;
        if config.get_hosts().is_empty() {
            return Err(bad("it has no host"));
        }
        let is_local = config.get_hosts().iter().all(is_loopback);
        let is_secure = match mode.as_deref() {
            None => !is_local,
            Some(VERIFY_FULL) => true,
            Some("disable") => false,
            Some("prefer") if is_local => false,
            Some(_) => {
                return Err(bad(
                    "`sslmode` is `verify-full` or `disable`; on loopback it may be `prefer`",
                ));
            }
        };
        config
            .ssl_mode(if is_secure { SslMode::Require } else { SslMode::Disable })
            .application_name("keylatch")
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        Ok(Self { config, is_secure })
    }
}

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// The URL without its `sslmode`, and that.
fn without_sslmode(url: &str) -> (String, Option<String>) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (mut mode, mut rest) = (None, Vec::new());
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", value)) => mode = Some(value.to_owned()),
            _ => rest.push(pair),
        }
    }
    let rest = rest.join("&");
    (if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") }, mode)
}

/// What the driver says of a URL, up to where it might repeat a part of it.
fn without_value(text: &str) -> String {
    text.split([':', '`']).next().unwrap_or_default().trim().to_owned()
}

fn bad(why: &str) -> OpenError {
    OpenError::BadPostgresUrl(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_secure(url: &str) -> Option<bool> {
        Address::parse(url).ok().map(|address| address.is_secure)
    }

    #[test]
    fn certificate_is_checked_unless_the_server_is_here() {
        for local in ["localhost", "127.0.0.1:5433", "[::1]", "127.0.0.1,localhost"] {
            assert_eq!(is_secure(&format!("postgres://u:p@{local}/db")), Some(false), "{local}");
        }
        for other in ["db.example", "10.0.0.7", "127.0.0.1,db.example"] {
            assert_eq!(is_secure(&format!("postgres://u:p@{other}/db")), Some(true), "{other}");
        }
        assert_eq!(is_secure("postgres://db.example/db?sslmode=disable"), Some(false));
        assert_eq!(is_secure("postgres://localhost/db?sslmode=verify-full"), Some(true));
        for mode in ["require", "prefer", "allow", "verify-ca", ""] {
            assert_eq!(
                is_secure(&format!("postgres://db.example/db?sslmode={mode}")),
                None,
                "{mode}"
            );
        }
    }

    #[test]
    fn error_of_a_url_keeps_the_password() {
        for url in [
            "postgres://u:hunter2@h:port/db",
            "postgres://u:hunter2@/db?x=hunter2",
            "postgres://u:hunter2@h/d?port=hunter2",
        ] {
            let error = Address::parse(url).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|text| !text.contains("hunter2")), "{error:?}");
        }
    }
}
