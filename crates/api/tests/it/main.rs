//! Tests of the public interface.

mod schema;
