//! Removing a pod's mounts on a host with shared mounts, as systemd makes them, leaves the host's
//! mounts alone.

use crate::removal;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podconfig::{mount_table, pod_uids, subpath};
use std::fs;
use std::path::Path;

const NONE: Option<&str> = None;

/// Runs `test` in its own mount namespace, with a shared filesystem that contains a directory with
/// a nested mount.
fn on_a_shared_host(test: impl FnOnce(&Path, &Path) + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().canonicalize().unwrap();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root: run `make test` as root");
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        mount_table::tmpfs(&host, None).unwrap();
        mount(NONE, &host, NONE, MsFlags::MS_SHARED, NONE).unwrap();
        let disk = host.join("disk");
        fs::create_dir_all(disk.join("nested")).unwrap();
        mount_table::tmpfs(&disk.join("nested"), None).unwrap();
        fs::write(disk.join("nested/data"), "precious").unwrap();
        test(&host, &disk);
        assert!(mount_table::is_mount_point(&disk.join("nested")).unwrap(), "the host's own mount");
        assert_eq!(fs::read_to_string(disk.join("nested/data")).unwrap(), "precious");
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn n_147_t_node_69_removing_a_pods_volumes_keeps_the_hosts_mounts() {
    on_a_shared_host(|host, disk| {
        let pods = host.join("pods");
        for uid in ["u-1", "u-2"] {
            let target = pods.join(uid).join("volumes/kubernetes.io~local-volume/pv");
            fs::create_dir_all(&target).unwrap();
            mount_table::bind(disk, &target).unwrap();
            assert!(target.join("nested/data").exists());
        }
        removal::tear_down(&pods, "u-1").unwrap();
        removal::tear_down(&pods, "u-2").unwrap();
        assert!(mount_table::below(&pods).unwrap().is_empty());
        assert!(pod_uids(&pods).unwrap().is_empty());
    });
}

#[test]
fn n_150_binding_a_sub_path_again_keeps_the_hosts_mounts() {
    on_a_shared_host(|host, disk| {
        let target = host.join("pods/u-1/volume-subpaths/v/c/0");
        for _ in 0..2 {
            subpath::bind(disk, Path::new("."), &target).unwrap();
            assert!(target.join("nested/data").exists());
        }
        let layers = mount_table::points().unwrap().into_iter().filter(|point| *point == target);
        assert_eq!(layers.count(), 1);
    });
}
