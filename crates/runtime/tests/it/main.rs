//! Tests of both runtimes and of the image store through their public interfaces.

mod cri;
mod images;
mod native;
