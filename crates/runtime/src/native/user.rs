//! User and groups of a container's process, from its spec and the account files of its image (N-127).

use crate::shim::open_in;
use crate::{Error, Result, Security, User};
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Larger account files are truncated.
const ACCOUNTS_MAX: u64 = 4 << 20;

/// Indexes of fields in lines of /etc/passwd and /etc/group.
mod field {
    pub(super) const USER_ID: usize = 2;
    pub(super) const USER_GROUP: usize = 3;
    pub(super) const USER_HOME: usize = 5;
    pub(super) const GROUP_ID: usize = 2;
    pub(super) const GROUP_MEMBERS: usize = 3;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The primary group is the first.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: Option<String>,
}

/// The image's /etc/passwd and /etc/group.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Reads them from the layers of an image, topmost first.
    pub(crate) fn read(layers: &[PathBuf]) -> Accounts {
        Accounts {
            passwd: read(layers, Path::new("/etc/passwd")),
            group: read(layers, Path::new("/etc/group")),
        }
    }

    pub(crate) fn resolve(&self, image_user: &str, security: &Security) -> Result<ProcessUser> {
        let (name, group) = match image_user.split_once(':') {
            Some((name, group)) => (name, Some(group)),
            None => (image_user, None),
        };
        let (uid, line) = match security.user {
            User::Uid(uid) => (uid, self.user_by_id(uid)),
            User::Image => match name.parse::<u32>() {
                Ok(uid) => (uid, self.user_by_id(uid)),
                Err(_) if name.is_empty() => (0, self.user_by_id(0)),
                Err(_) => {
                    let line = self.user_by_name(name).ok_or_else(|| {
                        Error::Refused(format!(
                            "unable to find user {name}: no matching entries in passwd file"
                        ))
                    })?;
                    (number(&line, field::USER_ID)?, Some(line))
                }
            },
        };
        // The group of the image applies only to the user of the image.
        let group = group.filter(|_| security.user == User::Image);
        let gid = match (security.group, group) {
            (Some(gid), _) => gid,
            (None, Some(group)) => self.group_id(group)?,
            (None, None) => {
                line.as_deref().map_or(Ok(0), |line| number(line, field::USER_GROUP))?
            }
        };
        let mut groups = vec![gid];
        let user_name = line.as_deref().and_then(|line| line.split(':').next());
        let of_image =
            user_name.filter(|_| !security.strict_groups).map(|name| self.groups_of(name));
        for group in
            security.supplemental_groups.iter().copied().chain(of_image.into_iter().flatten())
        {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let home = line
            .as_deref()
            .and_then(|line| line.split(':').nth(field::USER_HOME))
            .map(str::to_owned);
        Ok(ProcessUser { uid, gid, groups, home: home.filter(|home| !home.is_empty()) })
    }

    fn user_by_id(&self, uid: u32) -> Option<String> {
        let uid = uid.to_string();
        self.passwd
            .lines()
            .find(|line| line.split(':').nth(field::USER_ID) == Some(&uid))
            .map(str::to_owned)
    }

    fn user_by_name(&self, name: &str) -> Option<String> {
        self.passwd.lines().find(|line| line.split(':').next() == Some(name)).map(str::to_owned)
    }

    fn group_id(&self, group: &str) -> Result<u32> {
        if let Ok(gid) = group.parse() {
            return Ok(gid);
        }
        let line = self.group.lines().find(|line| line.split(':').next() == Some(group));
        let line = line.ok_or_else(|| {
            Error::Refused(format!(
                "unable to find group {group}: no matching entries in group file"
            ))
        })?;
        number(line, field::GROUP_ID)
    }

    fn groups_of(&self, name: &str) -> Vec<u32> {
        self.group
            .lines()
            .filter(|line| {
                line.split(':')
                    .nth(field::GROUP_MEMBERS)
                    .is_some_and(|members| members.split(',').any(|member| member.trim() == name))
            })
            .filter_map(|line| number(line, field::GROUP_ID).ok())
            .collect()
    }
}

fn number(line: &str, field: usize) -> Result<u32> {
    line.split(':').nth(field).and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
        Error::Refused(format!(
            "the image has an invalid line in its passwd or group file: {line:?}"
        ))
    })
}

/// Reads a file from the topmost layer that has it. Links are resolved inside the layer. If the topmost entry is a
/// whiteout, which is a device, the file is deleted and the result is empty.
fn read(layers: &[PathBuf], path: &Path) -> String {
    for layer in layers {
        let Ok(root) = File::open(layer) else { continue };
        let Ok(file) = open_in(&root.into(), path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) else {
            continue;
        };
        let file = File::from(file);
        let mut text = String::new();
        if file.metadata().is_ok_and(|found| found.is_file()) {
            let _ = file.take(ACCOUNTS_MAX).read_to_string(&mut text);
        }
        return text;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1001::/home/alice:/bin/sh\n"
                .into(),
            group: "root:x:0:\nalice:x:1001:\nwheel:x:50:alice,bob\naudio:x:60:bob\n".into(),
        }
    }

    fn resolve(image_user: &str, security: Security) -> (u32, u32, Vec<u32>) {
        let identity = accounts().resolve(image_user, &security).unwrap();
        (identity.uid, identity.gid, identity.groups)
    }

    /// N-127: runAsUser, runAsGroup, supplementalGroups and their policy against the image.
    #[test]
    fn n_127_user_and_groups_come_from_the_spec_then_the_image() {
        let uid = |uid| Security { user: User::Uid(uid), ..Security::default() };
        assert_eq!(resolve("", Security::default()), (0, 0, vec![0]));
        assert_eq!(resolve("alice", Security::default()), (1000, 1001, vec![1001, 50]));
        assert_eq!(resolve("1000", Security::default()), (1000, 1001, vec![1001, 50]));
        assert_eq!(resolve("alice:wheel", Security::default()), (1000, 50, vec![50]));
        assert_eq!(resolve("7:8", Security::default()), (7, 8, vec![8]));
        assert_eq!(resolve("alice", uid(4242)), (4242, 0, vec![0]), "unknown users have group 0");
        assert_eq!(resolve("", uid(1000)), (1000, 1001, vec![1001, 50]));
        let strict =
            Security { strict_groups: true, supplemental_groups: vec![77, 77], ..uid(1000) };
        assert_eq!(resolve("", strict), (1000, 1001, vec![1001, 77]));
        let group = Security { group: Some(9), supplemental_groups: vec![5], ..uid(1000) };
        assert_eq!(resolve("", group), (1000, 9, vec![9, 5, 50]));
    }

    #[test]
    fn a_user_name_that_the_image_does_not_have_is_an_error() {
        let error = accounts().resolve("carol", &Security::default()).unwrap_err();
        assert!(error.to_string().contains("carol"), "{error}");
    }
}
