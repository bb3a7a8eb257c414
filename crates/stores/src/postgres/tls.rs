//! How connections to a server are encrypted: with the authorities and the certificate that the URL
//! names, by the parameters of libpq.
//!
//! The name in the server's certificate has to be that of the URL, always. Tested in
//! `tests/stores/postgres_tls.rs`.

use tokio_postgres_rustls::MakeRustlsConnect;

use crate::conn::tls::{Certificates, Words};
use crate::error::OpenError;

/// As libpq has them. It says another name by `host` and `hostaddr`.
pub(super) const WORDS: Words = Words {
    roots: "sslrootcert",
    cert: "sslcert",
    key: "sslkey",
    server_name: None,
    incomplete: "`sslcert` and `sslkey` belong together",
};

/// Encrypts by `certificates`.
pub(super) fn connector(certificates: &Certificates) -> Result<MakeRustlsConnect, OpenError> {
    let config =
        certificates.client_config(&WORDS).map_err(|why| OpenError::Unfit("PostgreSQL", why))?;
    Ok(MakeRustlsConnect::new(config))
}
