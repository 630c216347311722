//! Which allocator: a fast one for the server, the system's small one for a pod's shim.
//!
//! mimalloc takes a fraction of the time, and a third of a write was once spent allocating. But it
//! keeps megabytes at hand, and there is a shim for every pod. Both are in one binary, so the choice
//! is made before the first allocation, and then holds for every one.
//!
//! Huge pages are disabled in mimalloc: this makes an idle server almost a third smaller. mimalloc's own
//! environment variables override this.

#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to implement, and so is running before main"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Chosen;

static IN_SHIM: AtomicBool = AtomicBool::new(false);

/// glibc calls this with the arguments, before Rust's own start.
#[used]
#[unsafe(link_section = ".init_array.00099")]
static CHOOSE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = choose;

extern "C" fn choose(count: c_int, args: *const *const c_char, _env: *const *const c_char) {
    if count < 2 || args.is_null() {
        return;
    }
    // SAFETY: the C library promises `count` arguments, each a string that ends in zero.
    let first = unsafe { CStr::from_ptr(*args.add(1)) };
    let in_shim = first.to_bytes() == runtime::SHIM_WORD.as_bytes();
    IN_SHIM.store(in_shim, Ordering::Relaxed);
    match in_shim {
        true => allow_huge_pages(),
        false => set(c"MIMALLOC_ALLOW_THP", c"0"),
    }
}

/// Read by mimalloc at its first allocation. Set before there is another thread.
fn set(variable: &CStr, value: &CStr) {
    // SAFETY: both are strings that end in zero, and nobody else reads the environment yet.
    unsafe { libc::setenv(variable.as_ptr(), value.as_ptr(), 0) };
}

/// What mimalloc refuses for a whole process is inherited, over `exec` too: containers are children of
/// the shim, and theirs is the system's setting.
fn allow_huge_pages() {
    // SAFETY: no pointer is passed.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
}

fn in_shim() -> bool {
    IN_SHIM.load(Ordering::Relaxed)
}

// SAFETY: everything is passed on to one of two allocators, and always to the same one.
unsafe impl GlobalAlloc for Chosen {
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
