//! The API key by which a service knows the client.
//!
//! It is sent with every request of the client, so use `https` where others can listen. It prints without its
//! secret. The service judges what it is worth; here it is only made sure that a header takes it.

use std::fmt;

use hyper::header::HeaderValue;

use crate::Error;

/// The variable that has the key.
const VARIABLE: &str = "KEYLATCH_API_KEY";

/// An API key, as `keylatch key create` prints one.
#[derive(Clone)]
pub struct ApiKey(HeaderValue);

impl ApiKey {
    /// Reads a key.
    ///
    /// ```
    /// # fn main() -> Result<(), keylatch_client::Error> {
    /// use keylatch_client::{ApiKey, Client};
    ///
    /// let key = ApiKey::parse("kl_H2kCQ0Wq0m2Vn5t9lW8sVJYx3o1D6zZr0bGfUeTq7PcXa1Ni")?;
    /// let client = Client::with_api_key("https://locks.example", &key)?;
    /// assert_eq!(format!("{key:?}"), "ApiKey(..)");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The text is empty, or has something else than visible ASCII characters.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::ApiKey);
        }
        let mut bearer =
            HeaderValue::try_from(format!("Bearer {text}")).map_err(|_| Error::ApiKey)?;
        bearer.set_sensitive(true);
        Ok(Self(bearer))
    }

    /// The key in `KEYLATCH_API_KEY`, without the spaces and line ends around it; `None` where the variable is
    /// not set or empty.
    ///
    /// # Errors
    ///
    /// The variable has something else.
    pub fn from_environment() -> Result<Option<Self>, Error> {
        let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let text = text.to_str().ok_or(Error::ApiKey)?.trim();
        if text.is_empty() { Ok(None) } else { Self::parse(text).map(Some) }
    }

    /// The value of `Authorization`.
    pub(crate) fn bearer(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}
