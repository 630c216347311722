//! Device rules on v2: an eBPF program that the kernel runs at every open and mknod.
//!
//! The program checks the rules in order. The first rule that matches allows the access; if none matches, the
//! access is denied.

use super::device::Rule;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

// Constants of `linux/bpf.h`.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;

// Registers, named after their content.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

// Operation codes.
const LOAD_WORD: u8 = 0x61;
const AND_32: u8 = 0x54;
const SHIFT_RIGHT_32: u8 = 0x74;
const COPY_32: u8 = 0xbc;
const SET: u8 = 0xb7;
const JUMP_UNEQUAL: u8 = 0x55;
const JUMP_UNEQUAL_REGISTER: u8 = 0x5d;
const EXIT: u8 = 0x95;

const BLOCK_DEVICE: i32 = 1;
const CHARACTER_DEVICE: i32 = 2;
const ACCESS_MKNOD: i32 = 1;
const ACCESS_READ: i32 = 2;
const ACCESS_WRITE: i32 = 4;
const ACCESS_ALL: i32 = ACCESS_MKNOD | ACCESS_READ | ACCESS_WRITE;

#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Limits the cgroup at this directory to the devices that the rules allow.
pub(super) fn attach(directory: &Path, rules: &[Rule]) -> io::Result<()> {
    let program = program(rules);
    let license = c"Apache-2.0";
    let load = Load {
        kind: TYPE_CGROUP_DEVICE,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    let loaded = bpf(PROG_LOAD, &load)?;
    #[allow(unsafe_code, reason = "the kernel has just created this descriptor")]
    // SAFETY: a successful load returns a new descriptor without another owner.
    let loaded = unsafe { OwnedFd::from_raw_fd(loaded) };
    let group = File::open(directory)?;
    let attach = Attach {
        target: group.as_raw_fd() as u32,
        program: loaded.as_raw_fd() as u32,
        kind: ATTACH_CGROUP_DEVICE,
        flags: ALLOW_MULTI,
    };
    // The cgroup keeps the program loaded, so our descriptor may be closed.
    bpf(PROG_ATTACH, &attach).map(drop)
}

#[allow(unsafe_code, reason = "bpf has no wrapper")]
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads the given number of bytes of a struct that outlives the call, as do the buffers
    // whose addresses it contains.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>())
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
}

fn program(rules: &[Rule]) -> Vec<u64> {
    let mut program = vec![
        // The context: device type in the lower and access in the upper half of a word, then major and minor.
        instruction(LOAD_WORD, KIND, CONTEXT, 0, 0),
        instruction(AND_32, KIND, 0, 0, 0xFFFF),
        instruction(LOAD_WORD, ACCESS, CONTEXT, 0, 0),
        instruction(SHIFT_RIGHT_32, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules {
        program.extend(block(rule));
    }
    program.push(instruction(SET, RESULT, 0, 0, 0));
    program.push(instruction(EXIT, 0, 0, 0, 0));
    program
}

/// The instructions of one rule. They jump to the next rule at the first condition that does not match.
fn block(rule: &Rule) -> Vec<u64> {
    let mut tests: Vec<Vec<(u8, u8, u8, i32)>> = Vec::new();
    match rule.kind {
        'b' => tests.push(vec![(JUMP_UNEQUAL, KIND, 0, BLOCK_DEVICE)]),
        'c' => tests.push(vec![(JUMP_UNEQUAL, KIND, 0, CHARACTER_DEVICE)]),
        _ => {}
    }
    let allowed = [('m', ACCESS_MKNOD), ('r', ACCESS_READ), ('w', ACCESS_WRITE)];
    let mask: i32 = allowed
        .iter()
        .filter(|(letter, _)| rule.access.contains(*letter))
        .map(|(_, bit)| bit)
        .sum();
    if mask != ACCESS_ALL {
        // The requested access must be a subset of the allowed. The context register is free by now.
        tests.push(vec![
            (COPY_32, CONTEXT, ACCESS, 0),
            (AND_32, CONTEXT, 0, mask),
            (JUMP_UNEQUAL_REGISTER, CONTEXT, ACCESS, 0),
        ]);
    }
    for (register, number) in [(MAJOR, rule.major), (MINOR, rule.minor)] {
        if let Some(number) = number {
            tests.push(vec![(JUMP_UNEQUAL, register, 0, number as i32)]);
        }
    }
    let flat: Vec<_> = tests.into_iter().flatten().collect();
    let end = flat.len() + 2;
    let jumps = |code| code == JUMP_UNEQUAL || code == JUMP_UNEQUAL_REGISTER;
    let mut block: Vec<u64> = flat
        .into_iter()
        .enumerate()
        .map(|(at, (code, to, from, value))| {
            let offset = if jumps(code) { (end - at - 1) as i16 } else { 0 };
            instruction(code, to, from, offset, value)
        })
        .collect();
    block.push(instruction(SET, RESULT, 0, 0, 1));
    block.push(instruction(EXIT, 0, 0, 0, 0));
    block
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let [a, b] = offset.to_ne_bytes();
    let [c, d, e, f] = value.to_ne_bytes();
    u64::from_ne_bytes([code, to | from << 4, a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::super::device::Devices;
    use super::super::layout;
    use super::*;
    use std::process::Command;

    /// With the default rules a process can open /dev/null, but not /dev/kmsg, although it may create that node.
    #[test]
    fn the_kernel_enforces_the_program() {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root: run `make test` as root");
        let root = layout().unified().expect(
            "a unified cgroup tree is mounted: `mkdir -p /sys/fs/cgroup/unified` and \
             `mount -t cgroup2 none /sys/fs/cgroup/unified` make one",
        );
        let group = root.join(format!("landfall-test-{}", clock::uuid()));
        std::fs::create_dir(&group).unwrap();
        attach(&group, &Devices::default_rules()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "echo $$ > {}/cgroup.procs && head -c 1 /dev/zero > /dev/null && \
             mknod {}/kmsg c 1 11 && ! head -c 1 {}/kmsg 2>/dev/null",
            group.display(),
            directory.path().display(),
            directory.path().display(),
        );
        let outcome = Command::new("sh").arg("-c").arg(text).output().unwrap();
        std::fs::remove_dir(&group).unwrap();
        assert!(outcome.status.success(), "{outcome:?}");
    }
}
