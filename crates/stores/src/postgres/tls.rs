//! How the certificate of a server is checked: by the system's roots, or by those of one file.
//!
//! The name in the certificate has to be that of the URL, always. Tested in
//! `tests/stores/postgres/tls.rs`.

use std::path::PathBuf;

use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::OpenError;

/// Whose signature a server's certificate needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Roots {
    /// That of anyone whom the system trusts.
    System,
    /// That of a certificate of this PEM file.
    File(PathBuf),
}

/// Checks servers by `roots`.
///
/// # Errors
///
/// There is no certificate that can be read.
pub(super) fn verifying_connector(roots: &Roots) -> Result<MakeRustlsConnect, OpenError> {
    let (found, whose) = match roots {
        Roots::System => (rustls_native_certs::load_native_certs(), "the system"),
        Roots::File(path) => {
            (rustls_native_certs::load_certs_from_paths(Some(path), None), "the file `sslrootcert`")
        }
    };
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(found.certs);
    if usable == 0 {
        return Err(OpenError::UnfitPostgres(format!("{whose} has no certificate to check it by")));
    }
    let config = ClientConfig::builder().with_root_certificates(store).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
