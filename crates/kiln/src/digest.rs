//! Digests by which parts of artifacts and code are told apart.
use sha2::{Digest, Sha256};

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
