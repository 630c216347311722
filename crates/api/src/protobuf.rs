//! (being written)
pub fn decode(
    _schema: &crate::Schema,
    _resolve: impl Fn(&str, &str) -> Option<crate::schema::TypeId>,
    _bytes: &[u8],
) -> Result<(String, String, serde_json::Value), crate::decode::DecodeError> {
    Err(crate::decode::DecodeError::malformed("no protobuf yet"))
}
