//! The fingerprint of an HTTP request: what makes two requests the same.
//!
//! The same request has the same fingerprint whatever the order of its query parameters, of the
//! members of its JSON or of the fields of its form, and whatever the boundary of its parts. What
//! cannot be read as what its media type says is compared byte by byte: two requests may count as
//! different for that, but different ones never as the same. Golden values in the tests hold the
//! digests, which stores keep.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use form_urlencoded::parse;
use keylatch_core::idempotency::{Fingerprint, FingerprintHasher};
use percent_encoding::percent_decode;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// How deep canonical JSON goes; what is deeper is compared byte by byte.
const MAX_DEPTH: usize = 64;

/// What a fingerprint is taken of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FingerprintInput<'a> {
    /// The method.
    pub(crate) method: &'a str,
    /// The normalised path.
    pub(crate) path: &'a str,
    /// The query, without its question mark.
    pub(crate) query: &'a str,
    /// The `Content-Type`; empty where there is none.
    pub(crate) content_type: &'a str,
    /// The body.
    pub(crate) body: &'a Bytes,
    /// Members of the JSON object, or fields of the form, that do not count.
    pub(crate) ignore: &'a [String],
}

impl FingerprintInput<'_> {
    /// The fingerprint of the request.
    pub(crate) async fn fingerprint(self) -> Fingerprint {
        let mut hasher = FingerprintHasher::new("request");
        hasher.add(self.method).add(self.path);
        match sorted(self.query.as_bytes(), &[]) {
            Some(pairs) => hasher.add("pairs").add_pairs(&pairs),
            None => hasher.add("bytes").add(self.query),
        };
        let media_type = media_type(self.content_type);
        hasher.add(&media_type);
        let canonical = canonical(&media_type, &self).await;
        // Which of both it is counts, or a body could be written to look like another's canon.
        match canonical {
            Some(canonical) => hasher.add("canonical").add(canonical),
            None => hasher.add("bytes").add(self.body),
        };
        hasher.finish()
    }
}

/// The values of a form field, such as the one that stands in for the `Idempotency-Key` header where
/// browsers have no JavaScript. Empty where the body is no form, or has no such field.
pub(crate) async fn form_field(content_type: &str, body: &Bytes, field: &str) -> Vec<Vec<u8>> {
    match &*media_type(content_type) {
        "application/x-www-form-urlencoded" => {
            let fields = parse(body).filter(|(name, _)| name == field);
            fields.map(|(_, value)| value.into_owned().into_bytes()).collect()
        }
        "multipart/form-data" => parts_named(content_type, body, field).await,
        _ => Vec::new(),
    }
}

async fn parts_named(content_type: &str, body: &Bytes, field: &str) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    let Some(mut parts) = multipart(content_type, body) else { return values };
    while let Ok(Some(part)) = parts.next_field().await {
        if part.name() == Some(field) {
            let value = part.bytes().await;
            values.extend(value.map(|value| value.to_vec()));
        }
    }
    values
}

/// The type and subtype alone.
fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// What all spellings of the body have in common; `None` where only its bytes can be compared.
async fn canonical(media_type: &str, request: &FingerprintInput<'_>) -> Option<Vec<u8>> {
    match media_type {
        "application/x-www-form-urlencoded" => {
            let mut hasher = FingerprintHasher::new("form");
            hasher.add_pairs(&sorted(request.body, request.ignore)?);
            Some(hasher.finish().as_bytes().to_vec())
        }
        "multipart/form-data" => canonical_parts(request).await,
        json if json == "application/json" || json.ends_with("+json") => {
            canonical_json(request.body, request.ignore)
        }
        _ => None,
    }
}

/// The pairs by name; those of one name stay in their order, which may mean something. `None` where
/// they are not UTF-8, of which reading them would make the same replacement characters.
fn sorted(text: &[u8], ignore: &[String]) -> Option<Vec<(String, String)>> {
    percent_decode(text).decode_utf8().ok()?;
    let pairs = parse(text).map(|(name, value)| (name.into_owned(), value.into_owned()));
    let mut pairs: Vec<_> = pairs.filter(|(name, _)| !ignore.contains(name)).collect();
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    Some(pairs)
}

fn multipart(content_type: &str, body: &Bytes) -> Option<multer::Multipart<'static>> {
    let boundary = multer::parse_boundary(content_type).ok()?;
    let body = body.clone();
    let whole = futures_util::stream::once(async { Ok::<_, std::convert::Infallible>(body) });
    Some(multer::Multipart::new(whole, boundary))
}

async fn canonical_parts(request: &FingerprintInput<'_>) -> Option<Vec<u8>> {
    let mut parts = multipart(request.content_type, request.body)?;
    let mut hasher = FingerprintHasher::new("parts");
    while let Some(part) = parts.next_field().await.ok()? {
        let name = part.name().unwrap_or_default().to_owned();
        if request.ignore.contains(&name) {
            continue;
        }
        let file = part.file_name().unwrap_or_default().to_owned();
        let kind = part.content_type().map(ToString::to_string).unwrap_or_default();
        hasher.add(name).add(file).add(kind).add(part.bytes().await.ok()?);
    }
    Some(hasher.finish().as_bytes().to_vec())
}

/// JSON without white space, its members in order. Numbers stay as they are written: two amounts
/// that differ beyond what a float can tell are not the same.
fn canonical_json(body: &[u8], ignore: &[String]) -> Option<Vec<u8>> {
    let mut canon = Vec::with_capacity(body.len());
    let value: &RawValue = serde_json::from_slice(body).ok()?;
    write_value(value.get(), ignore, MAX_DEPTH, &mut canon)?;
    Some(canon)
}

fn write_value(text: &str, ignore: &[String], depth: usize, canon: &mut Vec<u8>) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match text.as_bytes().first()? {
        b'{' => {
            let Members(members) = serde_json::from_str(text).ok()?;
            canon.push(b'{');
            for (name, value) in members {
                if !ignore.contains(&name) {
                    serde_json::to_writer(&mut *canon, &name).ok()?;
                    canon.push(b':');
                    write_value(value.get(), &[], depth, canon)?;
                    canon.push(b',');
                }
            }
            canon.push(b'}');
        }
        b'[' => {
            let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            canon.push(b'[');
            for value in values {
                write_value(value.get(), &[], depth, canon)?;
                canon.push(b',');
            }
            canon.push(b']');
        }
        b'"' => {
            let text: String = serde_json::from_str(text).ok()?;
            serde_json::to_writer(&mut *canon, &text).ok()?;
        }
        _ => canon.extend_from_slice(text.as_bytes()),
    }
    Some(())
}

/// The members of an object in order of their names, no name twice.
struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Unique;

        impl<'de> Visitor<'de> for Unique {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if members.insert(name, value).is_some() {
                        return Err(A::Error::custom("a member is there twice"));
                    }
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(query: &str, content_type: &str, body: &str) -> Fingerprint {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let (method, path, ignore) = ("POST", "/v1/orders", &["nonce".to_owned()][..]);
        let body = &body;
        FingerprintInput { method, path, query, content_type, body, ignore }.fingerprint().await
    }

    async fn are_same(content_type: &str, one: &str, other: &str) -> bool {
        of("", content_type, one).await == of("", content_type, other).await
    }

    #[tokio::test]
    async fn json_is_compared_by_its_value() {
        let json = "application/json; charset=utf-8";
        for (one, other) in [
            (r#"{"a":1,"b":[1,2]}"#, "{ \"b\" : [1, 2],\n\"a\":1 }"),
            (r#"{"a":"\u0041"}"#, r#"{"a":"A"}"#),
            (r#"{"a":1,"nonce":1}"#, r#"{"nonce":[2],"a":1}"#),
        ] {
            assert!(are_same(json, one, other).await, "{one} {other}");
        }
        for (one, other) in [
            (r#"{"a":1}"#, r#"{"a":2}"#),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
            (r#"{"a":{"nonce":1}}"#, r#"{"a":{"nonce":2}}"#),
            (r#"{"a":10000000000000000000001}"#, r#"{"a":10000000000000000000002}"#),
            (r#"{"a":0.10000000000000000001}"#, r#"{"a":0.1}"#),
            (r#"{"a":"1"}"#, r#"{"a":1}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#"{"a":1"#, r#"{"a":1 "#),
        ] {
            assert!(!are_same(json, one, other).await, "{one} {other}");
        }
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(100), "]".repeat(100));
        assert!(are_same(json, &deep("1"), &deep("1")).await);
        assert!(!are_same(json, &deep("1"), &deep(" 1")).await, "compared byte by byte");
    }

    #[tokio::test]
    async fn forms_are_compared_by_their_fields() {
        let form = "application/x-www-form-urlencoded";
        assert!(are_same(form, "a=1&b=x+y&nonce=1", "b=x%20y&a=1").await);
        assert!(!are_same(form, "a=1&a=2", "a=2&a=1").await);
        assert!(!are_same(form, "a=1&b=2", "a=1").await);
        let parts = |boundary: &str, value: &str| {
            format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n\
                 --{boundary}--\r\n"
            )
        };
        let typed = |boundary: &str| format!("multipart/form-data; boundary={boundary}");
        let one = of("", &typed("x"), &parts("x", "1")).await;
        assert_eq!(one, of("", &typed("yy"), &parts("yy", "1")).await);
        assert_ne!(one, of("", &typed("x"), &parts("x", "2")).await);
    }

    #[tokio::test]
    async fn the_query_and_the_media_type_count() {
        let plain = of("a=1&b=2", "text/plain", "x").await;
        assert_eq!(plain, of("b=2&a=1", "Text/Plain; charset=utf-8", "x").await);
        assert_ne!(plain, of("b=2&a=2", "text/plain", "x").await);
        assert_ne!(plain, of("a=1&b=2", "text/html", "x").await);
        assert_ne!(plain, of("a=1&b=2", "text/plain", "x ").await);
    }

    /// Stores keep fingerprints for a year: another digest of the same request would refuse its
    /// repeats. The values were computed from the definition, by another program.
    #[tokio::test]
    async fn fingerprints_of_stored_requests_stay_equal() {
        let parts = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n";
        for (content_type, body, digest) in [
            (
                "application/json",
                r#"{"b":[1,2],"nonce":7,"a":1}"#,
                "89a064418122b41e5146f489bfe9bca7cf2cbb68226bc7f7c2588396c26e5f80",
            ),
            (
                "application/x-www-form-urlencoded",
                "b=x+y&a=1",
                "6dd22ffb60e14ff24d029a2fadd23701d28f9abcfac55210cdec83e5406d6803",
            ),
            (
                "multipart/form-data; boundary=x",
                parts,
                "fb149404fd4aaaed422b4ab05e1108af314fb3c05425368201be5352fd657e7b",
            ),
            ("text/plain", "x", "65b6b103b09ff8880ca43aaad4e7a21c54e06ccd897ec472a5cd5b549910e619"),
        ] {
            assert_eq!(hex(of("b=2&a=1", content_type, body).await), digest, "{content_type}");
        }
    }

    fn hex(fingerprint: Fingerprint) -> String {
        fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[tokio::test]
    async fn form_field_values_are_found() {
        let found = |content_type: &'static str, body: &'static str| async move {
            form_field(content_type, &Bytes::from_static(body.as_bytes()), "idempotency_key").await
        };
        let form = "application/x-www-form-urlencoded";
        assert_eq!(found(form, "a=1&idempotency_key=k-1").await, [b"k-1"]);
        assert_eq!(found(form, "idempotency_key=a&idempotency_key=").await, [&b"a"[..], b""]);
        assert!(found(form, "a=1").await.is_empty());
        assert!(found("application/json", "idempotency_key=k-1").await.is_empty());
        let body =
            "--x\r\nContent-Disposition: form-data; name=\"idempotency_key\"\r\n\r\nk-2\r\n--x--";
        assert_eq!(found("multipart/form-data; boundary=x", body).await, [b"k-2"]);
    }
}
