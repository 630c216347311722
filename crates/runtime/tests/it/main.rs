//! Tests of the runtimes and of the image store, by their faces.

mod registry;

mod cri;
mod images;
mod native;
