#![doc = include_str!("../README.md")]

pub mod kind;
pub mod schema;

pub mod decode;
pub mod protobuf;
pub mod yaml;

pub mod field;
pub mod metadata;
pub mod names;
pub mod pod;
pub mod quantity;
pub mod quota;
pub mod schedule;
pub mod selector;
pub mod status;
pub mod time_zone;
pub mod value;

pub mod apply;
pub mod patch;

pub mod crd;
pub mod table;

pub use field::{At, Errors};
pub use kind::{Kind, Registry};
pub use schema::Schema;
pub use status::Status;
