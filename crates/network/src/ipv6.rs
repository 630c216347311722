//! Whether the kernel can use IPv6, and how it becomes a router of IPv6 packets.

use crate::{Error, Result};
use std::fs;
use std::path::Path;

/// The settings of devices in the network namespace of the calling thread.
const SETTINGS: &str = "/proc/sys/net/ipv6/conf";

/// Why new devices in the network namespace of the calling thread get no IPv6 addresses, and what to do about it.
/// `None`: they get some.
pub fn ipv6_unavailable() -> Option<String> {
    unavailable(Path::new(SETTINGS))
}

fn unavailable(settings: &Path) -> Option<String> {
    for name in ["all", "default"] {
        let Ok(disabled) = fs::read_to_string(settings.join(name).join("disable_ipv6")) else {
            let why =
                "this kernel has no IPv6; if it was started with ipv6.disable=1, start it without";
            return Some(why.to_owned());
        };
        if disabled.trim() != "0" {
            let setting = format!("net.ipv6.conf.{name}.disable_ipv6");
            return Some(format!(
                "IPv6 is disabled on this host; run `sysctl -w {setting}=0` and start landfall again"
            ));
        }
    }
    None
}

/// Makes the node a router. Routers ignore router advertisements, from which the host may have its own default route,
/// unless a device has the setting `accept_ra=2`; devices that accept them now get it.
pub(crate) fn enable_forwarding() -> Result<()> {
    let settings = Path::new(SETTINGS);
    let path = settings.join("all/forwarding");
    let now = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    if now.trim() == "1" {
        return Ok(()); // The file may be read-only for us, so do not write without need.
    }
    keep_router_advertisements(settings);
    fs::write(&path, "1").map_err(Error::io("write", &path))
}

fn keep_router_advertisements(settings: &Path) {
    for device in fs::read_dir(settings).into_iter().flatten().flatten() {
        let name = device.file_name();
        let setting = device.path().join("accept_ra");
        let accepts = fs::read_to_string(&setting).is_ok_and(|text| text.trim() == "1");
        // `all` and `default` say nothing about an existing device. A failure leaves the device as it is.
        if accepts && name != "all" && name != "default" {
            let _ = fs::write(&setting, "2");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        directory
    }

    #[test]
    fn a_host_without_ipv6_is_told_what_to_change() {
        for (files, expected) in [
            (&[][..], Some("this kernel has no IPv6")),
            (&[("all/disable_ipv6", "0\n"), ("default/disable_ipv6", "0\n")], None),
            (
                &[("all/disable_ipv6", "1\n"), ("default/disable_ipv6", "1\n")],
                Some("sysctl -w net.ipv6.conf.all.disable_ipv6=0"),
            ),
            (
                &[("all/disable_ipv6", "0\n"), ("default/disable_ipv6", "1\n")],
                Some("sysctl -w net.ipv6.conf.default.disable_ipv6=0"),
            ),
        ] {
            let why = unavailable(settings(files).path());
            match (&why, expected) {
                (Some(why), Some(expected)) => assert!(why.contains(expected), "{why}"),
                _ => assert_eq!(why.as_deref(), expected),
            }
        }
    }

    #[test]
    fn a_host_keeps_the_router_advertisements_that_it_accepts() {
        let directory = settings(&[
            ("all/accept_ra", "1\n"),
            ("eth0/accept_ra", "1\n"),
            ("eth1/accept_ra", "0\n"),
        ]);
        keep_router_advertisements(directory.path());
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("all/accept_ra"), "1\n");
        assert_eq!(read("eth0/accept_ra"), "2");
        assert_eq!(read("eth1/accept_ra"), "0\n");
    }
}
