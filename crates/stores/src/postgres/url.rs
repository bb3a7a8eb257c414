//! The URL of a PostgreSQL:
//! `postgres://USER:PASSWORD@HOST[:PORT][,HOST…]/DB[?sslmode=…][&sslrootcert=…][&sslcert=…&sslkey=…]`.
//!
//! The driver reads the URL. How the connection is kept secret is decided here, because the
//! driver's modes check no certificate: unless every host is this machine, a connection is
//! encrypted and the server's certificate checked, or the URL says `sslmode=disable`. Each host is
//! an address of its own, because the driver would try them one after the other in the time that is
//! meant for one. With `hostaddr`, the host is the name that the certificate is for, and the
//! address is where it is. The name in the server's certificate has to be that of the URL, always.
//! Tested below, and in `tests/stores/postgres_tls.rs`.

use std::net::IpAddr;
use std::str::FromStr as _;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::conn::tls::{Certificates, Words};
use crate::error::OpenError;

/// The value of `sslmode` that is the default off loopback.
const VERIFY_FULL: &str = "verify-full";
/// The value of `sslrootcert` that names no file.
const SYSTEM: &str = "system";

/// After how long without a sign of the server its machine is asked for one.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// The pause between such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How many stay without a response before the connection counts as lost.
const KEEPALIVE_RETRIES: u32 = 3;

/// As libpq has them. It says another name by `host` and `hostaddr`.
const WORDS: Words = Words {
    roots: "sslrootcert",
    cert: "sslcert",
    key: "sslkey",
    server_name: None,
    incomplete: "`sslcert` and `sslkey` belong together",
};

#[derive(Debug, Clone)]
pub(super) struct Address {
    /// How to connect to each host.
    pub(super) hosts: Vec<Config>,
    /// The certificates; `None` where connections are not encrypted.
    pub(super) security: Option<Certificates>,
}

impl Address {
    /// Reads a URL. An error says nothing of the URL, which may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let (url, mode, certificates) = without_security(url)?;
        let config =
            Config::from_str(&url).map_err(|error| bad(&without_value(&error.to_string())))?;
        let is_local = config.get_hosts().iter().all(is_loopback);
        let is_secure = match mode {
            None => !is_local || certificates.is_some(),
            Some(VERIFY_FULL) => true,
            Some("disable") if certificates.as_ref().is_some_and(|all| all.identity.is_some()) => {
                return Err(bad("`sslcert` is of no use with `sslmode=disable`"));
            }
            Some("disable") => false,
            Some("prefer") if is_local => false,
            Some(_) => {
                return Err(bad(
                    "`sslmode` is `verify-full` or `disable`; on loopback it may be `prefer`",
                ));
            }
        };
        let mode = if is_secure { SslMode::Require } else { SslMode::Disable };
        let security = is_secure.then(|| certificates.unwrap_or_default());
        Ok(Self { hosts: hosts_of(&config, mode)?, security })
    }
}

pub(super) fn connector(certificates: &Certificates) -> Result<MakeRustlsConnect, OpenError> {
    let config =
        certificates.client_config(&WORDS).map_err(|why| OpenError::Unfit("PostgreSQL", why))?;
    Ok(MakeRustlsConnect::new(config))
}

/// How to connect to each of the hosts of `url`.
fn hosts_of(url: &Config, mode: SslMode) -> Result<Vec<Config>, OpenError> {
    let (names, ports, addresses) = (url.get_hosts(), url.get_ports(), url.get_hostaddrs());
    if names.is_empty() {
        return Err(bad("it has no host"));
    }
    let fits = |count| count <= 1 || count == names.len();
    if !fits(ports.len()) || !(addresses.is_empty() || addresses.len() == names.len()) {
        return Err(bad("it has not as many ports or addresses as hosts"));
    }
    let hosts = names.iter().enumerate().map(|(index, name)| {
        let mut host = without_hosts(url);
        host.ssl_mode(mode);
        match name {
            Host::Tcp(name) => host.host(name),
            #[cfg(unix)]
            Host::Unix(path) => host.host_path(path),
        };
        if let Some(port) = ports.get(index).or(ports.first()) {
            host.port(*port);
        }
        if let Some(address) = addresses.get(index) {
            host.hostaddr(*address);
        }
        host
    });
    Ok(hosts.collect())
}

/// What the URL says of every host.
fn without_hosts(url: &Config) -> Config {
    let mut config = Config::new();
    config
        .application_name(url.get_application_name().unwrap_or("keylatch"))
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        .channel_binding(url.get_channel_binding())
        .ssl_negotiation(url.get_ssl_negotiation())
        .keepalives(url.get_keepalives())
        .keepalives_idle(url.get_keepalives_idle().min(KEEPALIVE_IDLE))
        .keepalives_interval(url.get_keepalives_interval().unwrap_or(KEEPALIVE_INTERVAL))
        .keepalives_retries(url.get_keepalives_retries().unwrap_or(KEEPALIVE_RETRIES));
    url.get_user().map(|user| config.user(user));
    url.get_password().map(|password| config.password(password));
    url.get_dbname().map(|name| config.dbname(name));
    url.get_options().map(|options| config.options(options));
    url.get_connect_timeout().map(|limit| config.connect_timeout(*limit));
    url.get_tcp_user_timeout().map(|limit| config.tcp_user_timeout(*limit));
    config
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

/// The URL without its `sslmode` and without its certificates, and those; `None` where it names
/// none.
fn without_security(url: &str) -> Result<(String, Option<&str>, Option<Certificates>), OpenError> {
    let Some((base, query)) = url.split_once('?') else { return Ok((url.to_owned(), None, None)) };
    let (mut certificates, mut rest) = Certificates::split(&WORDS, query).map_err(bad)?;
    let is_named = certificates != Certificates::default();
    certificates.roots.take_if(|path| path.as_os_str() == SYSTEM);
    let mut mode = None;
    rest.retain(|parameter| match parameter.strip_prefix("sslmode=") {
        Some(value) => {
            mode = Some(value);
            false
        }
        None => true,
    });
    let rest = rest.join("&");
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") };
    Ok((url, mode, is_named.then_some(certificates)))
}

/// What the driver says of a URL, up to where it might repeat a part of it.
fn without_value(text: &str) -> String {
    text.split([':', '`']).next().unwrap_or_default().trim().to_owned()
}

fn bad(why: &str) -> OpenError {
    OpenError::BadUrl("a PostgreSQL", why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_secure(url: &str) -> Option<bool> {
        Address::parse(url).ok().map(|address| address.security.is_some())
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
    fn certificates_are_those_that_the_url_names() {
        let security = |url: &str| Address::parse(url).ok().and_then(|address| address.security);
        let roots =
            |path: &str| Certificates { roots: Some(path.into()), ..Certificates::default() };
        let system = Some(Certificates::default());
        assert_eq!(security("postgres://db.example/db"), system);
        assert_eq!(security("postgres://localhost/db?sslrootcert=system"), system);
        let both = "postgres://localhost/db?sslrootcert=/a%20b.pem&sslmode=verify-full";
        assert_eq!(security(both), Some(roots("/a b.pem")));
        assert_eq!(security("postgres://db.example/db?sslrootcert=/a.pem&sslmode=disable"), None);
        let identity = Some(("/c.pem".into(), "/k.pem".into()));
        let mutual = "postgres://db.example/db?sslrootcert=/a.pem&sslcert=/c.pem&sslkey=/k.pem";
        assert_eq!(security(mutual), Some(Certificates { identity, ..roots("/a.pem") }));
        for wrong in ["sslcert=/c.pem", "sslcert=/c.pem&sslkey=/k.pem&sslmode=disable"] {
            assert!(Address::parse(&format!("postgres://h/db?{wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn address_is_apart_from_the_name_of_the_certificate() {
        let address = Address::parse("postgres://db.example:1/db?hostaddr=10.0.0.7").unwrap();
        let host = &address.hosts[0];
        assert_eq!(host.get_hosts(), [Host::Tcp("db.example".to_owned())]);
        assert_eq!(host.get_hostaddrs(), ["10.0.0.7".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn each_host_has_its_port_and_all_the_rest() {
        let url = "postgres://u:p@one:1,two:2/db?options=-c%20a%3Db&keepalives_retries=7";
        let hosts = Address::parse(url).map(|address| address.hosts);
        let hosts = hosts.unwrap_or_default();
        let ports: Vec<_> = hosts.iter().map(|host| host.get_ports().to_vec()).collect();
        assert_eq!(ports, [[1], [2]]);
        for (host, name) in hosts.iter().zip(["one", "two"]) {
            assert_eq!(host.get_hosts(), [Host::Tcp(name.to_owned())]);
            assert_eq!((host.get_user(), host.get_password()), (Some("u"), Some(&b"p"[..])));
            assert_eq!((host.get_dbname(), host.get_options()), (Some("db"), Some("-c a=b")));
            assert_eq!(host.get_keepalives_retries(), Some(7));
        }
    }
}
