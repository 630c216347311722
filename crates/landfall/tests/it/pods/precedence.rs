//! On a busy machine landfall and its shims get CPU time before containers.

use super::on_a_node;
use crate::harness;

/// The CPU cgroup of a process.
fn group_of(pid: &str) -> String {
    let places = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    let is_cpu = |controllers: &str| controllers.split(',').any(|name| name == "cpu");
    let mut parts = places.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let found = parts.clone().find(|(controllers, _)| is_cpu(controllers));
    let found = found.or_else(|| parts.find(|(controllers, _)| controllers.is_empty()));
    found.expect("it is in a group").1.to_owned()
}

/// The ids of processes whose command line contains these words.
fn running(words: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("there are processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let says = |pid: &String| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ").contains(words)
    };
    pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())).filter(says).collect()
}

#[test]
fn landfall_and_its_shims_have_groups_of_their_own_and_containers_are_with_the_pods() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let (data, mark) = (cluster.data_dir(), format!("1000{}", std::process::id()));
        kubectl.ok(&format!(
            "kubectl run p --image=busybox:1 -- sleep {mark}
             kubectl wait --for=condition=Ready pod/p --timeout=30s"
        ));
        let container = running(&format!("sleep {mark}"))
            .into_iter()
            .find(|pid| group_of(pid).contains("/pod"));
        let container = group_of(&container.expect("it runs, with the pods"));
        let pods = container.split('/').nth(1).expect("pods have a group").to_owned();
        // With cgroup v2 a service stays in the cgroup of its service manager.
        let own = group_of("self");
        let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let stays = unified && own.contains(".service");
        let wanted = if stays { own } else { format!("/{pods}.agent") };
        let up = running(&format!("up --data-dir {}", data.display()));
        assert_eq!(up.iter().map(|pid| group_of(pid)).collect::<Vec<_>>(), [wanted]);
        if harness::other_runtime().is_none() {
            let shims = running(&format!("shim {}", data.display()));
            assert_eq!(
                shims.iter().map(|pid| group_of(pid)).collect::<Vec<_>>(),
                [format!("/{pods}.shims")]
            );
        }
    });
}
