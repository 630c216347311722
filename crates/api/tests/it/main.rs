//! Tests of the API that need only its face.

mod rules;
mod schema;
