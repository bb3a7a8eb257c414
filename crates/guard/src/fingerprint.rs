//! The fingerprint of an HTTP request: what makes two requests the same.
//!
//! The same request has the same fingerprint whatever the order of its query parameters, of the
//! members of its JSON or of the fields of its form, and whatever the boundary of its parts. What
//! cannot be read as what its media type says is compared byte by byte: two requests may count as
//! different for that, but different ones never as the same. `docs/idempotency.md` lists what does
//! not count. Golden values in the tests hold the digests, which stores keep.

use bytes::Bytes;
use form_urlencoded::parse;
use keylatch_core::idempotency::{Fingerprint, FingerprintHasher};
use multer::Field;
use percent_encoding::percent_decode;

use crate::canonical_json::canonical_json;
use crate::escapes::{has_whole_escapes, normalize_escapes};
use crate::fields::CountedFields;
use crate::media_type::{MediaType, text_of};
use crate::worker::off_worker;

/// How many pairs every reader reads.
const MAX_PAIRS: usize = 1000;

/// What a fingerprint is taken of.
#[derive(Debug, Clone)]
pub(crate) struct FingerprintInput {
    /// The method in upper case, such as `POST`.
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) media_type: MediaType,
    /// How the body is coded; empty where it is not, or what it contains was read.
    pub(crate) coding: String,
    pub(crate) body: Bytes,
    pub(crate) fields: CountedFields,
    /// The headers that say what is asked, by name.
    pub(crate) headers: Vec<(String, String)>,
}

impl FingerprintInput {
    pub(crate) fn fingerprint(self) -> impl Future<Output = Fingerprint> + Send {
        off_worker(self.body.len(), async move { self.digest().await })
    }

    async fn digest(&self) -> Fingerprint {
        let mut hasher = FingerprintHasher::new("request");
        hasher.add(&self.method).add(&self.path);
        match query_pairs(&self.query) {
            Some(pairs) => hasher.add("pairs").add_pairs(&pairs),
            None => hasher.add("bytes").add(&*normalize_escapes(&self.query)),
        };
        hasher.add(&self.media_type.canonical);
        if !self.coding.is_empty() {
            hasher.add("coding").add(&self.coding);
        }
        if !self.headers.is_empty() {
            hasher.add("headers").add_pairs(&self.headers);
        }
        // Which of both it is counts, or a body could be written to look like another's canon.
        match self.canonical().await {
            Some(canonical) => hasher.add("canonical").add(canonical),
            None => hasher.add("bytes").add(&self.body),
        };
        hasher.finish()
    }

    /// What all spellings of the body have in common; `None` where only its bytes can be compared.
    async fn canonical(&self) -> Option<Vec<u8>> {
        let (body, fields) = (&self.body, &self.fields);
        match self.media_type.essence.as_str() {
            _ if !self.coding.is_empty() => None,
            "application/x-www-form-urlencoded" => canonical_form(body, fields),
            // In a box, so that no other request keeps room for it.
            "multipart/form-data" => Box::pin(canonical_parts(self)).await,
            _ if self.media_type.is_json() => canonical_json(body, fields),
            _ => None,
        }
    }
}

/// The values of a form field, such as the one that stands in for the `Idempotency-Key` header
/// where browsers have no JavaScript. Empty where the body is no form, or has no such field.
pub(crate) async fn form_field(media_type: &MediaType, body: &Bytes, field: &str) -> Vec<Vec<u8>> {
    if !media_type.is_form() {
        return Vec::new();
    }
    let (media_type, body, field) = (media_type.clone(), body.clone(), field.to_owned());
    off_worker(body.len(), async move {
        if let Some(boundary) = &media_type.boundary {
            return Box::pin(parts_named(boundary, &body, &field)).await;
        }
        let fields = parse(&body).filter(|(name, _)| *name == field);
        fields.map(|(_, value)| value.into_owned().into_bytes()).collect()
    })
    .await
}

async fn parts_named(boundary: &str, body: &Bytes, field: &str) -> Vec<Vec<u8>> {
    let (mut values, mut parts) = (Vec::new(), multipart(boundary, body));
    while let Ok(Some(part)) = parts.next_field().await {
        if part.name() == Some(field) {
            let value = part.bytes().await;
            values.extend(value.map(|value| value.to_vec()));
        }
    }
    values
}

/// The pairs of a query by name. `None` where something is no pair: readers differ in what `x`
/// without a value is, and an `&` too many. A `+` is left as it is, because not every reader takes
/// it for a space.
fn query_pairs(query: &str) -> Option<Vec<(String, String)>> {
    if query.is_empty() {
        return Some(Vec::new());
    }
    let pairs = query.split('&').map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((normalize_escapes(name).into_owned(), normalize_escapes(value).into_owned()))
    });
    let pairs = pairs.collect::<Option<Vec<_>>>()?;
    if query.contains(';') { None } else { sorted(pairs) }
}

/// Pairs by name; those of one name stay in their order, which may mean something. `None` where the
/// order of different names may mean something too: some readers nest by
/// `[` and `.`, and PHP and qs drop what is behind [`MAX_PAIRS`].
fn sorted(mut pairs: Vec<(String, String)>) -> Option<Vec<(String, String)>> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let is_flat = |name: &str| !name.is_empty() && name.bytes().all(is_plain);
    if pairs.len() > MAX_PAIRS || !pairs.iter().all(|(name, _)| is_flat(name)) {
        return None;
    }
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    Some(pairs)
}

/// The fields of a form by name, as those of a query, or else as they are written. `None` where it
/// is not such a form as programs write, or not UTF-8: read as one, `C++` would be `C `, and all
/// that is not UTF-8 the same replacement characters.
fn canonical_form(body: &[u8], counted: &CountedFields) -> Option<Vec<u8>> {
    // Some readers take `;` for `&`.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|};".contains(byte);
    if !body.iter().all(is_plain) || !has_whole_escapes(body) {
        return None;
    }
    percent_decode(body).decode_utf8().ok()?;
    let mut fields: Vec<_> = str::from_utf8(body).ok()?.split('&').collect();
    if !body.is_empty() && !fields.iter().all(|field| field.contains('=')) {
        return None;
    }
    fields.retain(|field| parse(field.as_bytes()).all(|(name, _)| counted.count(&name)));
    if fields.is_empty() && counted.need_one() {
        return None;
    }
    let fields = fields.join("&");
    let pairs =
        parse(fields.as_bytes()).map(|(name, value)| (name.into_owned(), value.into_owned()));
    let (kind, pairs) = match sorted(pairs.collect()) {
        Some(pairs) => ("form", pairs),
        None => ("fields", vec![(fields, String::new())]),
    };
    let mut hasher = FingerprintHasher::new(kind);
    hasher.add_pairs(&pairs);
    Some(hasher.finish().as_bytes().to_vec())
}

/// A body in parts, with this boundary between them.
fn multipart(boundary: &str, body: &Bytes) -> multer::Multipart<'static> {
    let body = body.clone();
    let whole = futures_util::stream::once(async { Ok::<_, std::convert::Infallible>(body) });
    multer::Multipart::new(whole, boundary)
}

async fn canonical_parts(request: &FingerprintInput) -> Option<Vec<u8>> {
    let boundary = request.media_type.boundary.as_ref()?;
    let (mut parts, delimiter) = (multipart(boundary, &request.body), format!("--{boundary}"));
    // Before the first boundary and behind the last one there may be text, which some readers see.
    let inner = request.body.strip_prefix(delimiter.as_bytes())?;
    let inner = inner.strip_suffix(b"\r\n").unwrap_or(inner);
    inner.strip_suffix(format!("{delimiter}--").as_bytes())?;
    let pieces = request.body.windows(delimiter.len());
    let mut delimiters = pieces.filter(|piece| *piece == delimiter.as_bytes()).count();
    let mut read = Vec::new();
    while let Some(part) = parts.next_field().await.ok()? {
        delimiters = delimiters.checked_sub(1)?;
        let name = part.name().unwrap_or_default().to_owned();
        if !request.fields.count(&name) {
            continue;
        }
        let file = part.file_name().unwrap_or_default().to_owned();
        let kind = part.content_type().map(ToString::to_string).unwrap_or_default();
        let more = more_of_head(&part, &kind);
        read.push(([name, file, kind], more, part.bytes().await.ok()?));
    }
    // One within a part ends it to readers that take a bare line feed for the end of a line.
    if delimiters != 1 || (read.is_empty() && request.fields.need_one()) {
        return None;
    }
    let is_plain = read.iter().all(|(_, more, _)| more.is_empty());
    let mut hasher = FingerprintHasher::new(if is_plain { "parts" } else { "parts with heads" });
    for ([name, file, kind], more, bytes) in read {
        hasher.add(name).add(file).add(kind).add(bytes);
        if !is_plain {
            hasher.add_pairs(&more);
        }
    }
    Some(hasher.finish().as_bytes().to_vec())
}

/// What the head of a part says beside its name, its file and its media type.
fn more_of_head(part: &Field<'_>, kind: &str) -> Vec<(String, String)> {
    let name = part.name().unwrap_or_default();
    let plain = match part.file_name() {
        Some(file) => format!("form-data; name=\"{name}\"; filename=\"{file}\""),
        None => format!("form-data; name=\"{name}\""),
    };
    let is_bare_file = part.file_name() == Some("");
    let lines = part.headers().iter().map(|(header, value)| (header.as_str(), text_of(value)));
    let more = lines.filter(|(header, value)| match *header {
        "content-disposition" => is_bare_file || utf8_of(&plain) != *value,
        "content-type" => value != kind,
        _ => true,
    });
    let mut more: Vec<_> = more.map(|(header, value)| (header.to_owned(), value)).collect();
    more.sort_by(|one, other| one.0.cmp(&other.0));
    more
}

/// A text as [`text_of`] shows the header that has its bytes.
fn utf8_of(text: &str) -> String {
    text.bytes().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, header};
    use futures_util::FutureExt as _;

    use super::*;
    use crate::worker::LONG;
    use crate::{FieldName, Guard};

    async fn of(query: &str, content_type: &str, body: &str) -> Fingerprint {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        let ignore_fields = vec![FieldName::Name("nonce".to_owned())];
        let guard = Guard { ignore_fields, ..Guard::default() };
        let body = Bytes::copy_from_slice(body.as_bytes());
        guard.fingerprint(("POST", "/v1/orders", query), &headers, &body).await
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

    /// A worker that reads a long body answers no other client meanwhile.
    #[tokio::test]
    async fn long_body_is_read_off_the_workers() {
        let deep =
            format!("{}{}{}", "[".repeat(60), "1,".repeat(LONG), "1".to_owned() + &"]".repeat(60));
        let long_form = "a=1&".repeat(LONG) + "a=1";
        let parts = format!(
            "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{long_form}\r\n--x--\r\n"
        );
        for (kind, body) in [
            ("application/json", &*deep),
            ("application/x-www-form-urlencoded", &long_form),
            ("multipart/form-data; boundary=x", &parts),
        ] {
            assert!(of("", kind, body).now_or_never().is_none(), "{kind} took a worker");
            assert_eq!(of("", kind, body).await, of("", kind, body).await, "{kind}");
        }
        assert!(
            of("", "application/json", "{}").now_or_never().is_some(),
            "a short one has no wait"
        );
    }

    fn hex(fingerprint: Fingerprint) -> String {
        fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
