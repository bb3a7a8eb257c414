//! The public keys of an issuer (RFC 7517), and which of them may have signed a token.
//!
//! A key is of use for the algorithms of its type, or for the one that it names. The algorithm that
//! a token names has to be one of them: what the token says never widens what a key may do (RFC
//! 8725, section 3.1).

use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Header};

/// What is wrong with a key set of which no key can verify a signature.
const EMPTY: &str = "it has no key that signs by RSA, ECDSA (P-256, P-384) or Ed25519";

/// The keys by which an issuer signs.
#[derive(Debug)]
pub(super) struct IssuerKeys(Vec<IssuerKey>);

#[derive(Debug)]
struct IssuerKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl IssuerKeys {
    /// Reads a key set. A key of another kind or use is left out. The error repeats nothing of the
    /// text.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_slice(text)
            .map_err(|error| format!("it is not a JSON Web Key Set (line {})", error.line()))?;
        let keys: Vec<_> = set.keys.iter().filter_map(IssuerKey::of).collect();
        let is_some = !keys.is_empty();
        is_some.then_some(Self(keys)).ok_or_else(|| EMPTY.to_owned())
    }

    /// The keys that may have signed a token with this header.
    pub(super) fn of(&self, header: &Header) -> impl Iterator<Item = &DecodingKey> {
        let is_named = |key: &&IssuerKey| header.kid.is_none() || key.id == header.kid;
        let signs = |key: &&IssuerKey| key.algorithms.contains(&header.alg);
        self.0.iter().filter(is_named).filter(signs).map(|key| &key.key)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

impl IssuerKey {
    fn of(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        if common.public_key_use.as_ref().is_some_and(|of| *of != PublicKeyUse::Signature) {
            return None;
        }
        let mut algorithms = algorithms(&jwk.algorithm);
        if let Some(only) = common.key_algorithm {
            algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == only);
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let id = common.key_id.clone();
        (!algorithms.is_empty()).then_some(Self { id, algorithms, key })
    }
}

/// By which algorithms a key of this type can sign.
fn algorithms(parameters: &AlgorithmParameters) -> Vec<Algorithm> {
    use Algorithm as A;
    match parameters {
        AlgorithmParameters::RSA(_) => {
            vec![A::RS256, A::RS384, A::RS512, A::PS256, A::PS384, A::PS512]
        }
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => vec![A::ES256],
            EllipticCurve::P384 => vec![A::ES384],
            _ => Vec::new(),
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            vec![A::EdDSA]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED: &str =
        r#""kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo""#;
    const EC: &str = r#""kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0""#;

    fn keys(members: &[&str]) -> Result<IssuerKeys, String> {
        let keys: Vec<_> = members.iter().map(|members| format!("{{{members}}}")).collect();
        IssuerKeys::parse(format!("{{\"keys\":[{}]}}", keys.join(",")).as_bytes())
    }

    fn count(keys: &IssuerKeys, id: Option<&str>, algorithm: Algorithm) -> usize {
        let header = Header { kid: id.map(str::to_owned), ..Header::new(algorithm) };
        keys.of(&header).count()
    }

    #[test]
    fn key_signs_by_its_id_and_its_algorithm_alone() {
        let named = format!("{ED},\"kid\":\"a\"");
        let keys = keys(&[&named, EC]).unwrap();
        assert_eq!(keys.count(), 2);
        assert_eq!(count(&keys, Some("a"), Algorithm::EdDSA), 1);
        assert_eq!(count(&keys, None, Algorithm::EdDSA), 1);
        assert_eq!(count(&keys, Some("b"), Algorithm::EdDSA), 0);
        assert_eq!(count(&keys, Some("a"), Algorithm::ES256), 0);
        assert_eq!(count(&keys, None, Algorithm::ES256), 1);
        for algorithm in [Algorithm::HS256, Algorithm::ES384, Algorithm::RS256] {
            assert_eq!(count(&keys, None, algorithm), 0, "{algorithm:?}");
        }
    }

    #[test]
    fn key_of_another_use_or_kind_is_left_out() {
        let shared = r#""kty":"oct","k":"c2VjcmV0""#;
        let of_encryption = format!("{ED},\"use\":\"enc\"");
        let of_other_algorithm = format!("{EC},\"alg\":\"ES384\"");
        for only in [shared, &of_encryption, &of_other_algorithm, r#""kty":"new""#] {
            assert_eq!(keys(&[only]).unwrap_err(), EMPTY, "{only}");
            assert_eq!(keys(&[only, ED]).unwrap().count(), 1, "{only}");
        }
        assert_eq!(keys(&[]).unwrap_err(), EMPTY);
        let wrong = IssuerKeys::parse(b"{\n\"keys\": 7}").unwrap_err();
        assert!(wrong.ends_with("(line 2)"), "{wrong}");
    }
}
