//! How signatures of JSON Web Tokens are verified: by ring, which the service has for TLS.
//!
//! The crate `jsonwebtoken` brings two providers, one of which needs CMake, and the other some
//! thirty crates beside those that the service has. So this is a provider that verifies and does
//! nothing else: RSA (PKCS#1 and PSS, 2048 to 8192 bits), ECDSA on P-256 and P-384, Ed25519 (RFC
//! 7518, sections 3.3 to 3.5; RFC 8037). Algorithms with a shared secret are none of it, so no
//! public key can pass for one.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

/// Lets `jsonwebtoken` verify by ring, in the whole process.
pub(super) fn use_ring() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
        verifier_factory: verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // Another provider of the same process does the same.
        let _ = PROVIDER.install_default();
    });
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let method = Method::of(*algorithm).ok_or(ErrorKind::UnsupportedAlgorithm)?;
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, method, key: key.clone() }))
}

/// What ring calls an algorithm.
#[derive(Clone, Copy)]
enum Method {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl Method {
    fn of(algorithm: Algorithm) -> Option<Self> {
        Some(match algorithm {
            Algorithm::RS256 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Self::Rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Self::Rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Self::Rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => Self::Curve(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Self::Curve(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Self::Curve(&ED25519),
            _ => return None,
        })
    }
}

struct RingVerifier {
    algorithm: Algorithm,
    method: Method,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match (self.method, self.key.kind()) {
            (Method::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Method::Curve(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7515, appendix A.2.
    const MODULUS: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddx\
        HmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMs\
        D1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSH\
        SXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdV\
        MTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8\
        NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    const MESSAGE: &str = "eyJhbGciOiJSUzI1NiJ9.\
        eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7\
        AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4\
        BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K\
        0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqv\
        hJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrB\
        p0igcN_IoypGlUPQGe77Rw";

    fn is_signed(algorithm: Algorithm, message: &str) -> bool {
        use_ring();
        let key = DecodingKey::from_rsa_components(MODULUS, "AQAB").unwrap();
        jsonwebtoken::crypto::verify(SIGNATURE, message.as_bytes(), &key, algorithm)
            .unwrap_or(false)
    }

    #[test]
    fn rsa_signature_of_the_rfc_is_verified() {
        assert!(is_signed(Algorithm::RS256, MESSAGE));
        assert!(!is_signed(Algorithm::RS256, &MESSAGE.replace("eyJpc3", "eyJpc4")));
        assert!(!is_signed(Algorithm::RS384, MESSAGE));
        assert!(!is_signed(Algorithm::PS256, MESSAGE));
    }

    #[test]
    fn public_key_is_no_shared_secret() {
        use_ring();
        for key in [DecodingKey::from_secret(b"secret"), DecodingKey::from_ed_der(&[7; 32])] {
            for algorithm in [Algorithm::HS256, Algorithm::RS256, Algorithm::ES256] {
                assert!(verifier(&algorithm, &key).is_err(), "{algorithm:?}");
            }
        }
    }
}
