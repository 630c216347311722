//! addresses
