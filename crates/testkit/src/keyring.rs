//! A file of identities of the test's own, and the keys to it.
//!
//! Keys are made by the service's own code, and the file is written as an operator writes it. A
//! test that writes it again sees the reload. The file ends with the keyring.

use std::fmt::Write as _;
use std::path::PathBuf;

use keylatch::access::ApiKey;
use keylatch::config::Config;
use tempfile::TempDir;

use crate::{Service, config};

/// A file of identities, gone with the test.
#[derive(Debug)]
pub struct Keyring {
    directory: TempDir,
    text: String,
}

impl Default for Keyring {
    fn default() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory"), text: String::new() }
    }
}

impl Keyring {
    /// A service with one identity, and the key of it.
    pub async fn serve(name: &str, lines: &str) -> (Service, Self, String) {
        let mut keyring = Self::default();
        let key = keyring.add(name, lines);
        (Service::start_with(keyring.config()).await, keyring, key)
    }

    /// Adds an identity with these further lines, and gives its key.
    pub fn add(&mut self, name: &str, lines: &str) -> String {
        self.add_expiring(name, "", lines)
    }

    /// The same, where `expires` follows the hash of the key.
    pub fn add_expiring(&mut self, name: &str, expires: &str, lines: &str) -> String {
        let key = ApiKey::generate().expect("random bytes");
        let hash = key.hash();
        writeln!(
            self.text,
            "[[identity]]\nname = \"{name}\"\nkeys = [{{ sha256 = \"{hash}\"{expires} }}]\n{lines}"
        )
        .expect("a text takes it");
        self.write(&self.text);
        key.expose().to_owned()
    }

    /// Adds an identity that has certificates with these names, and no key.
    pub fn add_certificates(&mut self, name: &str, names: &[&str], lines: &str) {
        writeln!(self.text, "[[identity]]\nname = \"{name}\"\ncertificates = {names:?}\n{lines}")
            .expect("a text takes it");
        self.write(&self.text);
    }

    /// Writes another text in place of the file.
    pub fn write(&self, text: &str) {
        std::fs::write(self.path(), text).expect("a file");
    }

    /// The text that lists all identities so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the file is.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("identities.toml")
    }

    /// The default configuration over memory, with these identities.
    pub fn config(&self) -> Config {
        let identities = self.path().display().to_string();
        Config { identities, ..config("memory:") }
    }
}
