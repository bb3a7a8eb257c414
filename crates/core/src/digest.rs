//! The SHA-256 of a secret or of a long text. The store keeps it instead of the text, and it prints
//! as `..`.
//!
//! Each kind is a type of its own, so that none passes for another. Tested in `tests/` of the
//! service, which search logs for secrets.

/// Defines such a digest.
macro_rules! digest {
    ($(#[$doc:meta])+ $name:ident) => {
        $(#[$doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name([u8; 32]);

        impl $name {
            /// A digest that a store kept.
            pub fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The digest's bytes.
            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}
pub(crate) use digest;
