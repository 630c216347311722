//! Several landfall instances on one machine do not touch each other's devices.

use crate::isolated::{address, call_tcp, cidr, config, isolated, open, rules, run, serve_tcp};
use network::{Error, Pods, PodsConfig, check_link};
use std::path::Path;

/// The configuration of a second instance, with its own state directory.
fn other(directory: &Path, link: &str, range: &str) -> PodsConfig {
    PodsConfig {
        link: link.into(),
        cidrs: vec![cidr(range)],
        table: format!("landfall-{link}"),
        ..config(&directory.join("other"))
    }
}

#[test]
fn a_second_instance_with_the_same_link_is_rejected_and_changes_nothing() {
    isolated(|directory| async move {
        let first = open(&directory).await;
        let pod = first.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        let before = (run("ip -o link"), run("ip route show table all"), rules());

        let second = other(&directory, "lf0", "10.78.0.0/24");
        std::fs::create_dir_all(&second.state_dir).unwrap();
        let early = check_link("lf0", &second.state_dir).unwrap_err();
        let late = Pods::open(second).await.err().unwrap();
        for error in [early, late] {
            assert!(error.is_taken());
            let records = directory.join("state").display().to_string();
            let expected = "link lf0 belongs to another landfall instance, whose records are in ";
            assert_eq!(error.to_string(), format!("{expected}{records}"));
        }
        assert_eq!((run("ip -o link"), run("ip route show table all"), rules()), before);
        assert_eq!(call_tcp(None, "10.77.3.2:80"), Ok("pod 10.77.3.1".into()));
        check_link("lf0", &directory.join("state")).unwrap();
    });
}

#[test]
fn a_second_instance_with_the_same_range_is_rejected_and_changes_nothing() {
    isolated(|directory| async move {
        let first = open(&directory).await;
        first.attach("a", &[]).await.unwrap();
        let before = (run("ip -o link"), run("ip route show table all"), rules());
        let second = other(&directory, "lf1", "10.77.0.0/16");
        let error = Pods::open(second).await.err().unwrap();
        assert!(matches!(error, Error::RangeTaken { .. }), "{error}");
        assert!(error.to_string().contains("10.77.0.0/16 are in use: link lf0 "), "{error}");
        assert_eq!((run("ip -o link"), run("ip route show table all"), rules()), before);
    });
}

#[test]
fn two_instances_remove_only_their_own_devices() {
    isolated(|directory| async move {
        let (first, second) = (open(&directory).await, other(&directory, "lf1", "10.78.0.0/24"));
        let second = Pods::open(second).await.unwrap();
        let pod = first.attach("a", &[]).await.unwrap();
        second.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        second.remove().await.unwrap();
        assert_eq!(call_tcp(None, "10.77.3.2:80"), Ok("pod 10.77.3.1".into()));
        assert_eq!(run("ip -o link").matches("lf1").count(), 0);
        first.remove().await.unwrap();
        assert_eq!(run("ip -o link").lines().count(), 1, "only loopback");
    });
}

#[test]
fn a_foreign_device_is_not_touched() {
    isolated(|directory| async move {
        run("ip link add lf0 type bridge");
        let error = Pods::open(config(&directory)).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "link lf0 already exists, and this landfall instance did not create it"
        );
        run("ip link delete lf0");
        // A device of another instance, named like one of our pod links.
        let records = directory.join("other");
        std::fs::create_dir_all(&records).unwrap();
        std::fs::write(records.join("instance.json"), r#"{"id":"other","link":"lf1"}"#).unwrap();
        let mark = format!("landfall other {}", records.display());
        run(&format!("ip link add lf0p2 type bridge && ip link set lf0p2 alias '{mark}'"));
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        assert_eq!(address(&pod), "10.77.3.3", "the device name for address index 2 is in use");
        pods.remove().await.unwrap();
        assert_eq!(run("ip -o link").matches("lf0").count(), 1);
    });
}

/// The process was killed before it set the mark, or the devices come from a version without marks.
#[test]
fn an_instance_recognises_its_own_devices_without_a_mark() {
    isolated(|directory| async move {
        let before = open(&directory).await;
        let pod = before.attach("kept", &[]).await.unwrap();
        std::mem::forget(before);
        run("ip link set lf0 alias '' && ip link set lf0p2 alias ''");
        let again = open(&directory).await;
        assert_eq!(again.find("kept"), Some(pod.clone()), "killed before it was marked");
        std::mem::forget(again);

        run("ip link set lf0 alias '' && ip link set lf0p2 alias ''");
        std::fs::remove_file(directory.join("state/instance.json")).unwrap();
        run("ip link add lf0p9 type bridge");
        let again = open(&directory).await;
        assert_eq!(again.find("kept"), Some(pod), "made by an older version");
        assert_eq!(run("ip -o link").matches("lf0p").count(), 1, "lf0p9 belongs to no record");
        again.remove().await.unwrap();
        assert_eq!(run("ip -o link").lines().count(), 1);
        // After `remove` the instance no longer claims the name.
        run("ip link add lf0 type bridge");
        assert!(Pods::open(config(&directory)).await.is_err());
    });
}

/// The link may have another name in the new configuration; the mark is the same.
#[test]
fn devices_of_an_earlier_run_under_another_name_are_removed() {
    isolated(|directory| async move {
        let before = open(&directory).await;
        before.attach("a", &[]).await.unwrap();
        std::mem::forget(before);
        let now = PodsConfig {
            link: "lf1".into(),
            cidrs: vec![cidr("10.78.0.0/24")],
            ..config(&directory)
        };
        Pods::open(now).await.unwrap();
        let links = run("ip -o link");
        assert_eq!((links.matches("lf0").count(), links.matches("lf1").count()), (0, 1), "{links}");
    });
}

/// After a user deletes the data directory without `landfall down`, the next instance must be able to start.
#[test]
fn the_link_of_an_instance_without_records_is_taken_over() {
    isolated(|directory| async move {
        drop(open(&directory).await);
        let second = other(&directory, "lf0", "10.78.0.0/24");
        std::fs::create_dir_all(&second.state_dir).unwrap();
        assert!(check_link("lf0", &second.state_dir).unwrap_err().is_taken());
        std::fs::remove_dir_all(directory.join("state")).unwrap();
        check_link("lf0", &second.state_dir).unwrap();
        let records = second.state_dir.display().to_string();
        let second = Pods::open(second).await.unwrap();
        assert!(run("ip -d link show lf0").contains(&records));
        second.remove().await.unwrap();
    });
}
