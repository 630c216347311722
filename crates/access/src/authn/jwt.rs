//! JSON Web Tokens signed with ES256 only: the server chooses the algorithm, never the token. Not here: what
//! the claims mean (`service_account`).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64URL;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey};
use ring::{digest, pkcs8};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt;

/// Our tokens are below 2 KiB. Anything much longer is refused before hashing it.
const TOKEN_MAX: usize = 16 * 1024;

/// What precedes an uncompressed P-256 point in a SubjectPublicKeyInfo.
const SPKI_P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error("malformed token: expected three base64url parts of JSON")]
    Malformed,
    #[error("the token is not signed with ES256")]
    Algorithm,
    #[error("the token is signed with an unknown key")]
    UnknownKey,
    #[error("signature does not match")]
    Signature,
}

/// A signing key cannot be used. The error reveals nothing of its content.
#[derive(Debug, thiserror::Error)]
#[error("not a P-256 private key in PKCS#8 PEM form")]
pub struct BadKey;

pub struct SigningKey {
    pair: EcdsaKeyPair,
    id: String,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

impl SigningKey {
    pub fn from_pem(pem: &str) -> Result<Self, BadKey> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| BadKey)?;
        Self::from_pkcs8(der.secret_pkcs8_der())
    }

    pub fn generate() -> Result<Self, BadKey> {
        let made: pkcs8::Document = EcdsaKeyPair::generate_pkcs8(
            &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
            &SystemRandom::new(),
        )
        .map_err(|_| BadKey)?;
        Self::from_pkcs8(made.as_ref())
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, BadKey> {
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair =
            EcdsaKeyPair::from_pkcs8(algorithm, der, &SystemRandom::new()).map_err(|_| BadKey)?;
        let mut spki = SPKI_P256.to_vec();
        spki.extend_from_slice(pair.public_key().as_ref());
        // Upstream, too, identifies a key by the hash of its public half.
        let id = BASE64URL.encode(digest::digest(&digest::SHA256, &spki));
        Ok(SigningKey { pair, id })
    }

    pub fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": self.id});
        let mut token = BASE64URL.encode(header.to_string());
        token.push('.');
        BASE64URL.encode_string(claims.to_string(), &mut token);
        let signature = self
            .pair
            .sign(&SystemRandom::new(), token.as_bytes())
            .expect("the kernel gives random numbers");
        token.push('.');
        BASE64URL.encode_string(signature, &mut token);
        token
    }

    /// The claims of a token that this key has signed.
    pub fn verify(&self, token: &str) -> Result<Value, JwtError> {
        if token.len() > TOKEN_MAX {
            return Err(JwtError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(JwtError::Malformed)?;
        let header: Header = decode_json(header)?;
        if header.alg != "ES256" {
            return Err(JwtError::Algorithm);
        }
        if header.kid != self.id {
            return Err(JwtError::UnknownKey);
        }
        let signature = BASE64URL.decode(signature).map_err(|_| JwtError::Malformed)?;
        let public = self.pair.public_key().as_ref();
        UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, public)
            .verify(signed.as_bytes(), &signature)
            .map_err(|_| JwtError::Signature)?;
        decode_json(claims)
    }

    /// The public half as a JSON Web Key.
    pub fn jwk(&self) -> Value {
        // An uncompressed point: 0x04, then 32 bytes each of x and y.
        let point = self.pair.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        json!({
            "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
            "x": BASE64URL.encode(x), "y": BASE64URL.encode(y),
        })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

fn decode_json<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, JwtError> {
    let bytes = BASE64URL.decode(part).map_err(|_| JwtError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| JwtError::Malformed)
}
