//! The certificates of encrypted connections, as the URL of a store names them:
//! `?cacert=PATH&cert=PATH&key=PATH`.
//!
//! The parameters have the words of the engine's own client, and hold for every server behind the
//! URL. A server's certificate has to be for the host of the URL, or for `servername` where the URL
//! has it. An error says nothing of the URL's text, which may hold a password. Tested below, and
//! with real servers in `tests/stores`: `etcd_tls.rs`, `postgres_tls.rs`,
//! `zookeeper_tls.rs`.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

#[derive(Debug)]
pub(crate) struct Words {
    pub(crate) roots: &'static str,
    pub(crate) cert: &'static str,
    pub(crate) key: &'static str,
    /// `None` where the engine has another way to say it.
    pub(crate) server_name: Option<&'static str>,
    /// That a certificate is there without its key, or the other way.
    pub(crate) incomplete: &'static str,
}

/// As the flags of `redis-cli` and `etcdctl` have them.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) const WORDS: Words = Words {
    roots: "cacert",
    cert: "cert",
    key: "key",
    server_name: Some("servername"),
    incomplete: "`cert` and `key` belong together",
};

/// What a URL says of certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The authorities that vouch for the servers; `None` for those of the system.
    pub(crate) roots: Option<PathBuf>,
    /// The certificate and the key of keylatch, if the servers ask for them.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// The name that the servers' certificates are for; `None` for the host that is connected to.
    pub(crate) server_name: Option<String>,
}

impl Certificates {
    /// What the parameters say that `words` name, and the other parameters.
    pub(crate) fn split<'a>(
        words: &Words,
        query: &'a str,
    ) -> Result<(Self, Vec<&'a str>), &'static str> {
        let [mut roots, mut cert, mut key, mut server_name] = [const { None }; 4];
        let mut others = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let slot = match name {
                _ if name == words.roots => &mut roots,
                _ if name == words.cert => &mut cert,
                _ if name == words.key => &mut key,
                _ if Some(name) == words.server_name => &mut server_name,
                _ => {
                    others.push(parameter);
                    continue;
                }
            };
            let value = percent_decode_str(value).decode_utf8();
            *slot = Some(value.map_err(|_| "a parameter of its certificates is not in UTF-8")?);
        }
        let path = |text: std::borrow::Cow<'_, str>| PathBuf::from(&*text);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((path(cert), path(key))),
            (None, None) => None,
            _ => return Err(words.incomplete),
        };
        let is_name = |name: &str| ServerName::try_from(name).is_ok();
        if server_name.as_deref().is_some_and(|name| !is_name(name)) {
            return Err("its `servername` is no name of a server");
        }
        let server_name = server_name.map(Into::into);
        Ok((Self { roots: roots.map(path), identity, server_name }, others))
    }

    /// These, if a URL of this scheme has TLS: those that begin with `secure`. `None` for others,
    /// which must not have any.
    #[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
    pub(crate) fn over(self, scheme: &str, secure: &str) -> Result<Option<Self>, String> {
        match scheme.starts_with(secure) {
            true => Ok(Some(self)),
            false if self == Self::default() => Ok(None),
            false => Err(format!("certificates are for a scheme that begins with `{secure}`")),
        }
    }
}

/// What the files hold, for a driver that reads it itself.
#[cfg(any(feature = "etcd", feature = "redis"))]
#[derive(Debug, Default)]
pub(crate) struct Pem {
    pub(crate) roots: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(any(feature = "etcd", feature = "redis"))]
impl Certificates {
    /// What the files hold, if it is of use: a driver would look at it at each connection only, and
    /// say that the server is away.
    pub(crate) fn pem(&self) -> Result<Pem, String> {
        let read = |word: &str, path: &PathBuf| {
            std::fs::read(path).map_err(|error| format!("the file `{word}`: {error}"))
        };
        let chain = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let mut pem = Pem::default();
        if let Some(path) = &self.roots {
            let roots = read(WORDS.roots, path)?;
            let added =
                RootCertStore::empty().add_parsable_certificates(chain(&roots).unwrap_or_default());
            if !matches!(added, (1.., 0)) {
                return Err("the file `cacert` has no certificate".to_owned());
            }
            pem.roots = Some(roots);
        }
        if let Some((cert, key)) = &self.identity {
            let (cert, key) = (read(WORDS.cert, cert)?, read(WORDS.key, key)?);
            let pair = chain(&cert).ok().zip(PrivateKeyDer::from_pem_slice(&key).ok());
            let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
            pair.and_then(|(chain, key)| config.with_client_auth_cert(chain, key).ok())
                .ok_or("the files `cert` and `key` have no certificate and key that fit")?;
            pem.identity = Some((cert, key));
        }
        Ok(pem)
    }
}

#[cfg(any(feature = "postgres", feature = "zookeeper"))]
impl Certificates {
    /// How a connection is encrypted by what the files hold.
    pub(crate) fn client_config(&self, words: &Words) -> Result<ClientConfig, String> {
        let config = ClientConfig::builder().with_root_certificates(self.root_store(words)?);
        let Some((cert, key)) = &self.identity else {
            return Ok(config.with_no_client_auth());
        };
        let of = |parameter: &str, error| format!("the file `{parameter}`: {error}");
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| of(words.key, error))?;
        let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
        let pair = config.with_client_auth_cert(chain.map_err(|error| of(words.cert, error))?, key);
        let Words { cert, key, .. } = words;
        pair.map_err(|_| format!("the files `{cert}` and `{key}` have no pair that fits"))
    }

    fn root_store(&self, words: &Words) -> Result<RootCertStore, String> {
        let (found, whose) = match &self.roots {
            None => (rustls_native_certs::load_native_certs(), "the system".to_owned()),
            Some(path) => (
                rustls_native_certs::load_certs_from_paths(Some(path), None),
                format!("the file `{}`", words.roots),
            ),
        };
        let mut store = RootCertStore::empty();
        match store.add_parsable_certificates(found.certs) {
            (0, _) => Err(format!("{whose} has no certificate to check servers by")),
            _ => Ok(store),
        }
    }
}

#[cfg(all(test, any(feature = "etcd", feature = "redis", feature = "zookeeper")))]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_taken_out_of_the_query() {
        let query = "cacert=/a%20b.pem&protocol=3&key=k&cert=c&&servername=db%2Eexample&x";
        let (certificates, others) = Certificates::split(&WORDS, query).unwrap();
        assert_eq!(others, ["protocol=3", "x"]);
        assert_eq!(certificates.roots, Some("/a b.pem".into()));
        assert_eq!(certificates.identity, Some(("c".into(), "k".into())));
        assert_eq!(certificates.server_name.as_deref(), Some("db.example"));
        assert_eq!(Certificates::split(&WORDS, "x=1").unwrap().0, Certificates::default());
    }

    #[test]
    fn certificate_needs_its_key() {
        for query in ["cert=a", "key=b"] {
            assert_eq!(Certificates::split(&WORDS, query), Err(WORDS.incomplete));
        }
        for query in ["cacert=%ff", "servername=", "servername=a%20b"] {
            assert!(Certificates::split(&WORDS, query).is_err(), "{query}");
        }
        assert!(Certificates::split(&WORDS, "servername=10.0.0.8").is_ok());
    }
}
