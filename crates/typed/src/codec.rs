//! One decode and one encode function per type, compiled once, in the crate that declares them.

use serde_json::{Result, Value};

/// A type with one decoder and one encoder. Implemented by [`codec!`](crate::codec).
pub trait Typed: Sized {
    fn decode(json: &str) -> Result<Self>;
    fn encode(&self) -> Result<Vec<u8>>;
}

/// Like `serde_json::from_value`, with the type's only decoder.
pub fn from_value<T: Typed>(value: Value) -> Result<T> {
    T::decode(&value.to_string())
}

/// Like `serde_json::to_value`, with the type's only encoder.
pub fn to_value<T: Typed>(object: &T) -> Result<Value> {
    serde_json::from_slice(&object.encode()?)
}

/// Implements [`Typed`] for these types, so that their decoder and encoder are compiled in this crate.
#[macro_export]
macro_rules! codec {
    ($($type:ty),* $(,)?) => {$(
        impl $crate::Typed for $type {
            #[inline(never)]
            fn decode(json: &str) -> $crate::serde_json::Result<Self> {
                $crate::decode_with(json, |text| $crate::serde_json::from_str(text))
            }

            #[inline(never)]
            fn encode(&self) -> $crate::serde_json::Result<::std::vec::Vec<u8>> {
                $crate::serde_json::to_vec(self)
            }
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    #[test]
    fn decoding_and_encoding_are_inverse() {
        let value = json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "a" }, "data": { "k": "\u{2028}\"v\"" } });
        let map: ConfigMap = from_value(value.clone()).unwrap();
        assert_eq!(to_value(&map).unwrap(), value);
        assert_eq!(
            ConfigMap::decode(std::str::from_utf8(&map.encode().unwrap()).unwrap()).unwrap(),
            map
        );
    }

    #[test]
    fn another_kind_is_an_error() {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": {} });
        assert!(from_value::<ConfigMap>(secret).is_err());
    }
}
