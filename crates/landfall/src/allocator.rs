//! The memory allocator: mimalloc for the server and the agent, the system's for a pod's shim.
//!
//! mimalloc is much faster: with the system's allocator, a third of the time of a write was spent
//! allocating. But it reserves megabytes, and there is a shim for every pod. Both programs are in one
//! binary, so the allocator is chosen before the first allocation and never changes afterwards.
//!
//! mimalloc does not use huge pages here: this makes an idle server almost a third smaller. mimalloc's
//! own environment variables override this.

#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to implement, and so is running before main"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Allocator;

static IN_SHIM: AtomicBool = AtomicBool::new(false);

/// glibc calls this with the command line before Rust's runtime starts.
#[used]
#[unsafe(link_section = ".init_array.00099")]
static CHOOSE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = choose;

extern "C" fn choose(count: c_int, args: *const *const c_char, _env: *const *const c_char) {
    if count < 2 || args.is_null() {
        return;
    }
    // SAFETY: the C library passes `count` arguments, each a string that ends in zero.
    let first = unsafe { CStr::from_ptr(*args.add(1)) };
    let in_shim = first.to_bytes() == runtime::SHIM_SUBCOMMAND.as_bytes();
    IN_SHIM.store(in_shim, Ordering::Relaxed);
    match in_shim {
        true => allow_huge_pages(),
        false => set(c"MIMALLOC_ALLOW_THP", c"0"),
    }
}

/// Sets a variable that mimalloc reads at its first allocation, before there is a second thread.
fn set(variable: &CStr, value: &CStr) {
    // SAFETY: both are strings that end in zero, and there is no other thread yet.
    unsafe { libc::setenv(variable.as_ptr(), value.as_ptr(), 0) };
}

/// Undoes what mimalloc has set for the process that started this shim. Children inherit it, even over
/// `exec`, and containers are children of the shim: they get the system's setting.
fn allow_huge_pages() {
    // SAFETY: no pointer is passed.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
}

fn in_shim() -> bool {
    IN_SHIM.load(Ordering::Relaxed)
}

// SAFETY: every call goes to one of two allocators, and always to the same one.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if in_shim() {
            unsafe { System.alloc(layout) }
        } else {
            unsafe { mimalloc::MiMalloc.alloc(layout) }
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if in_shim() {
            unsafe { System.dealloc(at, layout) }
        } else {
            unsafe { mimalloc::MiMalloc.dealloc(at, layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if in_shim() {
            unsafe { System.alloc_zeroed(layout) }
        } else {
            unsafe { mimalloc::MiMalloc.alloc_zeroed(layout) }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if in_shim() {
            unsafe { System.realloc(at, layout, size) }
        } else {
            unsafe { mimalloc::MiMalloc.realloc(at, layout, size) }
        }
    }
}
