//! What several caches of one process hear of is decoded once and held once.
//!
//! The scheduler, the controllers and the node each follow pods, and in one process they are told of every
//! change in the same words. An object's text is all there is to say about it, so the same text, of the
//! same type, is the same object. Known by its digest, and only while somebody holds it.

use crate::object::{AnyObject, Decoder};
use ring::digest::{SHA256, digest};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// So many of the latest are known. Caches hear of the same within moments of one another.
const KNOWN_MAX: usize = 1024;

type Digest = [u8; 32];
type Held = Weak<dyn AnyObject>;

#[derive(Default)]
struct Known {
    objects: HashMap<Digest, Held>,
    /// The oldest in front.
    order: VecDeque<Digest>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// The object in this text; the very same one, if somebody else has just decoded it.
pub(crate) fn object(text: &str, decoder: Decoder) -> serde_json::Result<Arc<dyn AnyObject>> {
    let name = name(text.as_bytes());
    if let Some(object) = with(|known| known.objects.get(&name).and_then(Weak::upgrade))
        && decoder.makes(object.as_ref())
    {
        return Ok(object);
    }
    let object = decoder.decode(text)?;
    with(|known| known.add(name, Arc::downgrade(&object)));
    Ok(object)
}

impl Known {
    fn add(&mut self, name: Digest, held: Held) {
        if self.objects.insert(name, held).is_none() {
            self.order.push_back(name);
        }
        if self.order.len() > KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.objects.remove(&oldest);
        }
    }
}

fn name(text: &[u8]) -> Digest {
    let mut name = Digest::default();
    name.copy_from_slice(digest(&SHA256, text).as_ref());
    name
}

/// Nobody panics in the middle of changing it.
fn with<T>(f: impl FnOnce(&mut Known) -> T) -> T {
    f(&mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;
    use crate::object::known;
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};

    const TEXT: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"told-twice"}}"#;

    fn read<K: Object>(text: &str) -> serde_json::Result<Arc<K>> {
        object(text, Decoder::of::<K>()).map(known)
    }

    #[test]
    fn the_same_text_is_the_same_object_while_somebody_holds_it() {
        let first = read::<ConfigMap>(TEXT).unwrap();
        assert!(Arc::ptr_eq(&first, &read::<ConfigMap>(TEXT).unwrap()));
        assert_eq!(Arc::strong_count(&first), 1, "only who asked holds it");
    }

    #[test]
    fn another_type_is_another_object() {
        let text = r#"{"metadata":{"name":"as-two-types"}}"#;
        let secret = read::<Secret>(text).unwrap();
        let map = read::<ConfigMap>(text).unwrap();
        assert_eq!(secret.metadata, map.metadata);
        assert!(read::<Secret>("{\"kind\":\"Sec").is_err());
    }

    #[test]
    fn who_manages_what_is_not_kept() {
        let text = r#"{"metadata":{"name":"managed","managedFields":[{"manager":"kubectl"}]}}"#;
        let map = read::<ConfigMap>(text).unwrap();
        assert_eq!(
            (map.metadata.name.as_deref(), &map.metadata.managed_fields),
            (Some("managed"), &None)
        );
    }

    #[test]
    fn old_ones_are_forgotten() {
        let mut known = Known::default();
        let held: Arc<dyn AnyObject> = Arc::new(ConfigMap::default());
        for number in 0..3 * KNOWN_MAX {
            known.add(name(&number.to_le_bytes()), Arc::downgrade(&held));
            known.add(name(&number.to_le_bytes()), Arc::downgrade(&held));
        }
        assert_eq!((known.objects.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
    }
}
