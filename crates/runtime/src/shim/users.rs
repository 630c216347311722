//! Pods with a user namespace (N-124): root in their containers is an unprivileged user on the node.
//!
//!     in the pod      0 … 65535
//!     on the node     first … first + 65535
//!
//! The user namespace is the owner of the pod's network namespace. The shim itself stays outside, because it
//! writes logs and manages cgroups. Owners of files on disk do not change: layers and volumes are mounted with
//! mapped owners (idmapped mounts), so that other pods can use them too. Only a container's writable layer
//! contains files of the mapped users.
//!
//! libcontainer mounts everything as the pod's root, by path. On the node this user has no access to
//! landfall's directories. So root first collects everything that the container needs in one directory that
//! all users may enter, in a private mount namespace ("staging").

use super::cannot;
use super::container::Container;
use super::message::ShimConfig;
use super::sys::{self, Forked};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use oci_spec::runtime::{LinuxNamespaceBuilder, LinuxNamespaceType, Spec};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Candidates for the staging directory. The node does not see the mounts: they are in the container's mount
/// namespace.
const STAGING_DIRECTORIES: &[&str] = &["/mnt", "/srv", "/opt", "/media", "/home", "/run", "/tmp"];
/// Bind mount sources that all users can open. These file systems do not support mapped owners.
const ACCESSIBLE_TO_ALL: &[&str] = &["/sys", "/dev"];

/// The user namespace of a pod.
pub(crate) struct Users {
    namespace: File,
    /// The user on the node that is root in the pod.
    pub(crate) first: u32,
}

impl Users {
    /// The user namespace that owns a network namespace.
    pub(crate) fn of_network(network: &File, first: u32) -> Result<Users, String> {
        let namespace = sys::owner_of_namespace(network.as_fd())
            .map_err(cannot("find the pod's user namespace"))?;
        let namespace = File::from(namespace);
        let number = |found: fs::Metadata| (found.dev(), found.ino());
        let theirs =
            namespace.metadata().map(number).map_err(cannot("find the pod's user namespace"))?;
        let own = fs::metadata("/proc/self/ns/user")
            .map(number)
            .map_err(cannot("find the pod's user namespace"))?;
        if theirs == own {
            return Err("the pod's network namespace belongs to the node's user namespace".into());
        }
        Ok(Users { namespace, first })
    }

    /// Moves this process into new namespaces that belong to the user namespace. A child creates them, because
    /// it must be in the user namespace for that.
    pub(crate) fn unshare(&self, kinds: CloneFlags, config: &ShimConfig) -> Result<(), String> {
        let pipe =
            || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(cannot("create a pipe"));
        // The child reports an error, then keeps the namespaces open until the parent closes the second pipe.
        let ((error_reader, error_writer), (exit_reader, exit_writer)) = (pipe()?, pipe()?);
        match sys::fork().map_err(cannot("fork"))? {
            Forked::Child => {
                drop((error_reader, exit_writer));
                let error = self.create_namespaces(kinds, config).err().unwrap_or_default();
                let _ = nix::unistd::write(error_writer.as_fd(), error.as_bytes());
                drop(error_writer);
                let _ = File::from(exit_reader).read(&mut [0]);
                sys::exit_now(0)
            }
            Forked::Parent(pid) => {
                drop((error_writer, exit_reader));
                let mut error = String::new();
                File::from(error_reader)
                    .read_to_string(&mut error)
                    .map_err(cannot("read a pipe"))?;
                let joined = if error.is_empty() { join(pid, kinds) } else { Err(error) };
                drop(exit_writer);
                let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None);
                joined
            }
        }
    }

    fn create_namespaces(&self, kinds: CloneFlags, config: &ShimConfig) -> Result<(), String> {
        setns(&self.namespace, CloneFlags::CLONE_NEWUSER)
            .map_err(cannot("enter the user namespace"))?;
        become_root()?;
        unshare(kinds).map_err(cannot("create the pod's namespaces"))?;
        // Only root of the user namespace may set sysctls of these namespaces.
        super::configure_namespaces(config)
    }

    /// Collects the container's layers and volumes in the staging directory and updates `config.json`. Returns
    /// where to mount its root, and the paths of the layers.
    pub(crate) fn stage(&self, container: &Container) -> Result<Staged, String> {
        let staging = staging_directory(&container.directory)?;
        let path = container.directory.join("config.json");
        let mut spec = Spec::load(&path).map_err(cannot("read config.json"))?;
        // Open all sources first: the tmpfs below may hide some of them.
        let mut trees: Vec<(PathBuf, OwnedFd)> = Vec::new();
        let mut layers = Vec::new();
        for (number, layer) in container.plan.layers.iter().enumerate() {
            let target = staging.join(format!("layer{number}"));
            trees.push((target.clone(), self.clone_mount(layer, true)?));
            layers.push(target);
        }
        let mut mounts = spec.mounts().clone().unwrap_or_default();
        for (number, mount) in mounts.iter_mut().enumerate() {
            let Some(source) = source_to_stage(mount) else { continue };
            let mapped = container.plan.mapped.contains(mount.destination());
            let target = staging.join(format!("mount{number}"));
            trees.push((target.clone(), self.clone_mount(&source, mapped)?));
            mount.set_source(Some(target));
        }
        let options = Some("mode=755,size=1m");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        nix::mount::mount(Some("landfall"), &staging, Some("tmpfs"), flags, options)
            .map_err(cannot("mount the staging directory"))?;
        for (target, tree) in trees {
            attach_mount(&tree, &target)
                .map_err(|error| format!("cannot mount {}: {error}", target.display()))?;
        }
        let root = staging.join("rootfs");
        fs::create_dir(&root).map_err(cannot("create the root directory"))?;
        spec.set_mounts(Some(mounts));
        self.configure(&mut spec, &root)?;
        spec.save(&path).map_err(cannot("write config.json"))?;
        Ok(Staged { root, layers })
    }

    fn configure(&self, spec: &mut Spec, root: &Path) -> Result<(), String> {
        let mut spec_root = spec.root().clone().unwrap_or_default();
        spec_root.set_path(root.to_owned());
        spec.set_root(Some(spec_root));
        let entry = LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::User)
            .path(format!("/proc/self/fd/{}", self.namespace.as_raw_fd()))
            .build()
            .map_err(cannot("configure the user namespace"))?;
        let mut linux = spec.linux().clone().unwrap_or_default();
        let mut namespaces = linux.namespaces().clone().unwrap_or_default();
        namespaces.push(entry);
        linux.set_namespaces(Some(namespaces));
        spec.set_linux(Some(linux));
        Ok(())
    }

    /// A detached copy of a mount and everything mounted below it. Owners can be mapped only before it is
    /// attached.
    fn clone_mount(&self, source: &Path, mapped: bool) -> Result<OwnedFd, String> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(rustix::fs::CWD, source, flags)
            .map_err(|error| format!("cannot open {}: {error}", source.display()))?;
        if mapped {
            sys::map_users(tree.as_fd(), self.namespace.as_fd()).map_err(|error| {
                format!(
                    "cannot map the owners of files in {} (hostUsers: false): {error}; this needs Linux \
                     5.19 or later and a file system that supports idmapped mounts",
                    source.display()
                )
            })?;
        }
        Ok(tree)
    }
}

/// What [`Users::stage`] has prepared.
pub(crate) struct Staged {
    pub(crate) root: PathBuf,
    pub(crate) layers: Vec<PathBuf>,
}

/// Becomes root of the current user namespace.
pub(crate) fn become_root() -> Result<(), String> {
    let (user, group) = (Uid::from_raw(0), Gid::from_raw(0));
    setgroups(&[]).map_err(cannot("leave groups"))?;
    setresgid(group, group, group).map_err(cannot("become the pod's root"))?;
    setresuid(user, user, user).map_err(cannot("become the pod's root"))
}

fn join(pid: i32, kinds: CloneFlags) -> Result<(), String> {
    let named = [(CloneFlags::CLONE_NEWIPC, "ipc"), (CloneFlags::CLONE_NEWUTS, "uts")];
    for (kind, name) in named.into_iter().filter(|(kind, _)| kinds.contains(*kind)) {
        let file = File::open(format!("/proc/{pid}/ns/{name}"))
            .map_err(cannot("open the pod's namespaces"))?;
        setns(file, kind).map_err(cannot("enter the pod's namespaces"))?;
    }
    Ok(())
}

/// The source of a bind mount that the pod's users cannot open themselves.
fn source_to_stage(mount: &oci_spec::runtime::Mount) -> Option<PathBuf> {
    let options = mount.options().as_ref()?;
    if !options.iter().any(|option| option == "bind" || option == "rbind") {
        return None;
    }
    let source = mount.source().clone()?;
    let accessible = ACCESSIBLE_TO_ALL.iter().any(|path| source.starts_with(path));
    (!accessible).then_some(source)
}

/// A directory that all users may enter and that does not hide the container's own directory.
fn staging_directory(container: &Path) -> Result<PathBuf, String> {
    const EXECUTE_BY_OTHERS: u32 = 0o001;
    let suitable = |candidate: &&&str| {
        let enterable = |found: fs::Metadata| found.permissions().mode() & EXECUTE_BY_OTHERS != 0;
        !container.starts_with(candidate) && fs::metadata(candidate).is_ok_and(enterable)
    };
    let found = STAGING_DIRECTORIES.iter().find(suitable).map(PathBuf::from);
    found.ok_or_else(|| {
        format!("the node has none of the directories {}", STAGING_DIRECTORIES.join(", "))
    })
}

fn attach_mount(tree: &OwnedFd, target: &Path) -> std::io::Result<()> {
    let is_directory = File::from(tree.try_clone()?).metadata()?.is_dir();
    if is_directory {
        fs::create_dir(target)?;
    } else {
        File::create(target)?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree, "", rustix::fs::CWD, target, flags)?;
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    Ok(mount(None::<&str>, target, None::<&str>, private, None::<&str>)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_staging_directory_does_not_hide_the_container() {
        for candidate in STAGING_DIRECTORIES.iter().filter(|path| Path::new(path).exists()) {
            let directory = Path::new(candidate).join("landfall/run/s/containers/c");
            let found = staging_directory(&directory).unwrap();
            assert!(!directory.starts_with(&found), "{candidate}");
        }
    }
}
