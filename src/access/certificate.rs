//! The names in a client's certificate, by which an identity is found.
//!
//! TLS has checked by then that an authority of `tls.client_ca` signed the certificate and that the
//! client has its key. The names are those of the subject (CN) and all alternative ones: DNS,
//! email, URI and IP. They are compared as written. So the authority vouches for every name that it
//! signs. Tested here, and over connections in `tests/api/client_certificates.rs`.

use std::net::IpAddr;

use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The attribute of a subject that is its common name.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The names in a certificate that was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames(Vec<String>);

impl CertificateNames {
    /// Reads the names of a certificate in DER. One that cannot be read has none.
    pub fn read(der: &[u8]) -> Self {
        let Ok(certificate) = Certificate::from_der(der) else { return Self::default() };
        let certificate = certificate.tbs_certificate;
        let attributes = certificate.subject.0.iter().flat_map(|names| names.0.iter());
        let mut names: Vec<String> = attributes
            .filter(|attribute| attribute.oid == COMMON_NAME)
            .filter(|attribute| {
                let text = [Tag::Utf8String, Tag::PrintableString, Tag::Ia5String];
                text.contains(&attribute.value.tag())
            })
            .filter_map(|attribute| String::from_utf8(attribute.value.value().to_vec()).ok())
            .collect();
        if let Ok(Some((_, SubjectAltName(others)))) = certificate.get::<SubjectAltName>() {
            names.extend(others.iter().filter_map(text));
        }
        Self(names)
    }

    /// Each name.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

fn text(name: &GeneralName) -> Option<String> {
    Some(match name {
        GeneralName::DnsName(name) => name.to_string(),
        GeneralName::Rfc822Name(name) => name.to_string(),
        GeneralName::UniformResourceIdentifier(name) => name.to_string(),
        GeneralName::IpAddress(bytes) => match *bytes.as_bytes() {
            [a, b, c, d] => IpAddr::from([a, b, c, d]).to_string(),
            _ => IpAddr::from(<[u8; 16]>::try_from(bytes.as_bytes()).ok()?).to_string(),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    #[test]
    fn subject_and_every_alternative_name_are_read() {
        let mut params =
            CertificateParams::new(["a.example".to_owned(), "::1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "Ben B.");
        params.distinguished_name.push(DnType::OrganizationName, "not a name");
        let text = |text: &str| Ia5String::try_from(text).unwrap();
        params.subject_alt_names.push(SanType::Rfc822Name(text("ben@example")));
        params.subject_alt_names.push(SanType::URI(text("spiffe://example/ci")));
        params.subject_alt_names.push(SanType::IpAddress([10, 0, 0, 1].into()));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let names = CertificateNames::read(certificate.der());
        let names: Vec<_> = names.iter().collect();
        let all = ["Ben B.", "a.example", "::1", "ben@example", "spiffe://example/ci", "10.0.0.1"];
        assert_eq!(names, all);
        assert_eq!(CertificateNames::read(b"no certificate"), CertificateNames::default());
    }
}
