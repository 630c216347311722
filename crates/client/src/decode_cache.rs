//! Lets several caches of one process share decoded objects.
//!
//! The scheduler, the controllers and the node each watch pods, and in one process each of them receives the same
//! text for every change. The text is decoded once, and all caches hold the same `Arc`. Objects are found by the
//! digest of their text, as long as a cache holds them.

use crate::object::{AnyObject, Decoder};
use ring::digest::{SHA256, digest};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// Number of recently decoded objects to remember. Caches receive a change within moments of each other.
const ENTRIES_MAX: usize = 1024;

type Digest = [u8; 32];

#[derive(Default)]
struct DecodeCache {
    objects: HashMap<Digest, Weak<dyn AnyObject>>,
    /// The oldest entry is in front.
    order: VecDeque<Digest>,
}

static CACHE: LazyLock<Mutex<DecodeCache>> = LazyLock::new(Mutex::default);

/// Decodes `text`, or returns the object that another cache has just decoded from the same text.
pub(crate) fn decode(text: &str, decoder: Decoder) -> serde_json::Result<Arc<dyn AnyObject>> {
    let key = digest_of(text.as_bytes());
    if let Some(object) = with_cache(|cache| cache.objects.get(&key).and_then(Weak::upgrade))
        && decoder.returns_type_of(object.as_ref())
    {
        return Ok(object);
    }
    let object = decoder.decode(text)?;
    with_cache(|cache| cache.add(key, Arc::downgrade(&object)));
    Ok(object)
}

impl DecodeCache {
    fn add(&mut self, key: Digest, object: Weak<dyn AnyObject>) {
        if self.objects.insert(key, object).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > ENTRIES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.objects.remove(&oldest);
        }
    }
}

fn digest_of(text: &[u8]) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest(&SHA256, text).as_ref());
    bytes
}

/// The closures do not panic, so a poisoned lock guards consistent data.
fn with_cache<T>(f: impl FnOnce(&mut DecodeCache) -> T) -> T {
    f(&mut CACHE.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;
    use crate::object::downcast;
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};

    const TEXT: &str =
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"received-twice"}}"#;

    fn read<K: Object>(text: &str) -> serde_json::Result<Arc<K>> {
        decode(text, Decoder::of::<K>()).map(downcast)
    }

    #[test]
    fn equal_texts_share_one_object_while_it_is_held() {
        let first = read::<ConfigMap>(TEXT).unwrap();
        assert!(Arc::ptr_eq(&first, &read::<ConfigMap>(TEXT).unwrap()));
        assert_eq!(Arc::strong_count(&first), 1, "the cache itself holds no strong reference");
    }

    #[test]
    fn equal_texts_of_different_types_are_different_objects() {
        let text = r#"{"metadata":{"name":"as-two-types"}}"#;
        let secret = read::<Secret>(text).unwrap();
        let map = read::<ConfigMap>(text).unwrap();
        assert_eq!(secret.metadata, map.metadata);
        assert!(read::<Secret>("{\"kind\":\"Sec").is_err());
    }

    #[test]
    fn managed_fields_are_dropped() {
        let text = r#"{"metadata":{"name":"managed","managedFields":[{"manager":"kubectl"}]}}"#;
        let map = read::<ConfigMap>(text).unwrap();
        assert_eq!(
            (map.metadata.name.as_deref(), &map.metadata.managed_fields),
            (Some("managed"), &None)
        );
    }

    #[test]
    fn old_entries_are_dropped() {
        let mut cache = DecodeCache::default();
        let held: Arc<dyn AnyObject> = Arc::new(ConfigMap::default());
        for number in 0..3 * ENTRIES_MAX {
            cache.add(digest_of(&number.to_le_bytes()), Arc::downgrade(&held));
            cache.add(digest_of(&number.to_le_bytes()), Arc::downgrade(&held));
        }
        assert_eq!((cache.objects.len(), cache.order.len()), (ENTRIES_MAX, ENTRIES_MAX));
    }
}
