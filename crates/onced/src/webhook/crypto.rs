//! The algorithms: the one place that calls cryptography, so that another library could stand behind it.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::{digest, hmac, signature};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;
use subtle::ConstantTimeEq as _;
use webpki::RawPublicKeyEntity;

use super::signature::{Algorithm, Encoding, SecretForm};

/// Standard base64; senders differ on whether its end is padded.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is wrong with a secret. It never says what the secret is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Nothing.
    #[error("the secret is empty")]
    Empty,
    /// Not hexadecimal digits in pairs.
    #[error("the secret is not written in hexadecimal")]
    Hex,
    /// Not base64.
    #[error("the secret is not written in base64")]
    Base64,
    /// No public key of that algorithm.
    #[error("the key is no public key of this algorithm: give the one that the provider shows, as PEM or as base64")]
    PublicKey,
    /// No secret at all.
    #[error("no secret is given: nothing could be told from a forgery")]
    None,
}

/// A secret or public key that is ready to be used.
pub(super) enum Lock {
    Hmac(hmac::Key),
    P256(SubjectPublicKeyInfoDer<'static>),
    Ed25519(Vec<u8>),
}

impl Lock {
    pub(super) fn new(algorithm: Algorithm, form: SecretForm, secret: &str) -> Result<Self, SecretError> {
        if secret.is_empty() {
            return Err(SecretError::Empty);
        }
        let bytes = match form {
            SecretForm::Text => secret.as_bytes().to_vec(),
            SecretForm::Hex => hex::decode(secret).map_err(|_| SecretError::Hex)?,
            SecretForm::Base64 => BASE64.decode(secret).map_err(|_| SecretError::Base64)?,
            SecretForm::Spki if secret.trim_start().starts_with("-----BEGIN") => {
                let key = SubjectPublicKeyInfoDer::from_pem_slice(secret.as_bytes());
                key.map_err(|_| SecretError::PublicKey)?.to_vec()
            }
            SecretForm::Spki => BASE64.decode(secret).map_err(|_| SecretError::Base64)?,
        };
        if bytes.is_empty() {
            return Err(SecretError::Empty);
        }
        match algorithm {
            Algorithm::HmacSha256 => Ok(Self::Hmac(hmac::Key::new(hmac::HMAC_SHA256, &bytes))),
            Algorithm::HmacSha1 => Ok(Self::Hmac(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &bytes))),
            Algorithm::EcdsaP256Sha256 => {
                let key = SubjectPublicKeyInfoDer::from(bytes);
                // What is checked says nothing; whether the key can be used at all shows in the kind of refusal.
                match p256(&key, b"", b"") {
                    Err(webpki::Error::InvalidSignatureForPublicKey) => Ok(Self::P256(key)),
                    Ok(()) | Err(_) => Err(SecretError::PublicKey),
                }
            }
            Algorithm::Ed25519 if bytes.len() == signature::ED25519_PUBLIC_KEY_LEN => Ok(Self::Ed25519(bytes)),
            Algorithm::Ed25519 => Err(SecretError::PublicKey),
        }
    }

    /// Which of the signatures is one of that text, if any. The time that it takes says nothing of how near a wrong one was.
    pub(super) fn opens(&self, text: &[u8], signatures: &[Vec<u8>]) -> bool {
        match self {
            Self::Hmac(key) => {
                let right = hmac::sign(key, text);
                signatures.iter().any(|signature| right.as_ref().ct_eq(signature).into())
            }
            Self::P256(key) => signatures.iter().any(|signature| p256(key, text, signature).is_ok()),
            Self::Ed25519(key) => {
                let key = signature::UnparsedPublicKey::new(&signature::ED25519, key);
                signatures.iter().any(|signature| key.verify(text, signature).is_ok())
            }
        }
    }

    /// The signature of a text, where the secret is one to sign with.
    pub(super) fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Hmac(key) => Some(hmac::sign(key, text).as_ref().to_vec()),
            Self::P256(_) | Self::Ed25519(_) => None,
        }
    }
}

fn p256(key: &SubjectPublicKeyInfoDer<'_>, text: &[u8], signature: &[u8]) -> Result<(), webpki::Error> {
    RawPublicKeyEntity::try_from(key)?.verify_signature(webpki::ring::ECDSA_P256_SHA256, text, signature)
}

/// Reads a signature; `None` where it is not written that way.
pub(super) fn decoded(encoding: Encoding, text: &[u8]) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Hex => hex::decode(text).ok(),
        Encoding::Base64 => BASE64.decode(text).ok(),
    }
}

/// Writes a signature.
pub(super) fn encoded(encoding: Encoding, signature: &[u8]) -> String {
    match encoding {
        Encoding::Hex => hex::encode(signature),
        Encoding::Base64 => base64::engine::general_purpose::STANDARD.encode(signature),
    }
}

/// Whether `written` is the SHA-256 of the bytes in hexadecimal.
pub(super) fn is_sha256_of(written: &str, bytes: &[u8]) -> bool {
    let right = digest::digest(&digest::SHA256, bytes);
    hex::decode(written).is_ok_and(|written| right.as_ref().ct_eq(&written).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_cannot_be_used_is_refused_by_what_is_wrong_with_it() {
        let error = |algorithm, form, secret: &str| Lock::new(algorithm, form, secret).map(drop).unwrap_err();
        use {Algorithm::*, SecretForm::*};
        assert_eq!(error(HmacSha256, Text, ""), SecretError::Empty);
        assert_eq!(error(HmacSha256, Base64, "===="), SecretError::Base64);
        assert_eq!(error(HmacSha256, Hex, "abc"), SecretError::Hex);
        assert_eq!(error(Ed25519, Base64, "AAAA"), SecretError::PublicKey);
        assert_eq!(error(EcdsaP256Sha256, Spki, "AAAA"), SecretError::PublicKey);
        assert_eq!(error(EcdsaP256Sha256, Spki, "-----BEGIN PUBLIC KEY-----"), SecretError::PublicKey);
    }

    #[test]
    fn a_public_key_of_another_algorithm_is_refused() {
        // An Ed25519 key of zeroes as `SubjectPublicKeyInfo`.
        let other = format!("MCowBQYDK2VwAyEA{}", "A".repeat(43));
        let refused = Lock::new(Algorithm::EcdsaP256Sha256, SecretForm::Spki, &other).map(drop);
        assert_eq!(refused, Err(SecretError::PublicKey));
    }
}
