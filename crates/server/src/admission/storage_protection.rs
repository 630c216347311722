//! StorageObjectInUseProtection: objects that store data are removed only when they are not in use. A controller
//! removes the finalizer.

use api::value::ValueExt;
use serde_json::{Value, json};

pub(super) fn admit(object: &mut Value, finalizer: &str) {
    let metadata = object.object("metadata");
    metadata.set_default("finalizers", json!([]));
    if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers")
        && !finalizers.iter().any(|known| known == finalizer)
    {
        finalizers.push(finalizer.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_154_the_finalizer_is_added_once() {
        let mut claim = json!({"metadata": {"finalizers": ["own"]}});
        admit(&mut claim, "kubernetes.io/pvc-protection");
        admit(&mut claim, "kubernetes.io/pvc-protection");
        assert_eq!(claim["metadata"]["finalizers"], json!(["own", "kubernetes.io/pvc-protection"]));
    }
}
