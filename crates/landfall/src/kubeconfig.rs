//! The kubeconfig where people need it: `landfall kubeconfig`, and what `sudo landfall up` does for the
//! user who called sudo.
//!
//! The administrator's kubeconfig is in the data directory, which only root can enter. Under sudo,
//! `landfall up` keeps a copy in the user's home, and can add a context to the user's `~/.kube/config`.
//! All files in a home are read and written with that user's rights, so that they belong to the user and
//! nothing is written that the user could not write.

mod find;

pub(crate) use find::find;

use crate::command::{KubeconfigCommand, UpOptions};
use crate::data_dir;
use anyhow::{Context, bail, ensure};
use nix::unistd::{Gid, Uid, User, setfsgid, setfsuid};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the context, cluster and user that are added to a kubeconfig.
pub(crate) const CONTEXT: &str = "landfall";
/// Name of the copy, beside the user's own `config`.
pub(crate) const COPY: &str = "landfall.yaml";
const PRIVATE: u32 = 0o600;
/// How often a running landfall looks whether its kubeconfig has changed: its certificate is renewed
/// long before it expires.
const REFRESH_EVERY: Duration = Duration::from_secs(3600);

pub(crate) fn run(command: &KubeconfigCommand) -> anyhow::Result<()> {
    data_dir::must_have_cluster(&command.data_dir)?;
    let ours = read_ours(&command.data_dir)?;
    if !command.merge {
        print!("{ours}");
        return Ok(());
    }
    let home = Home::of_the_person()?;
    let file = home.merge(&ours, &command.context)?;
    println!("added the context {} to {}", command.context, file.display());
    println!("use it with: kubectl --context {} get pods", command.context);
    println!("or always:   kubectl config use-context {}", command.context);
    Ok(())
}

fn read_ours(data_dir: &Path) -> anyhow::Result<String> {
    let path = data_dir.join("kubeconfig");
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// What `landfall up` has written for a person.
#[derive(Default)]
pub(crate) struct Published {
    /// The copy that the user who called sudo can read.
    pub(crate) copy: Option<PathBuf>,
    /// The context was added to the person's own kubeconfig.
    pub(crate) merged: bool,
}

/// Makes the kubeconfig available to the person who started landfall. Failures are reported and do not
/// stop landfall.
pub(crate) fn publish(options: &UpOptions) -> Published {
    let mut published = Published::default();
    if let Some(home) = Home::behind_sudo() {
        match read_ours(&options.common.data_dir).and_then(|ours| home.copy(&ours)) {
            Ok(copy) => published.copy = Some(copy),
            Err(error) => eprintln!(
                "landfall: there is no copy of the kubeconfig for the user who called sudo: {error:#}. \
                 `sudo landfall kubeconfig` prints it"
            ),
        }
    }
    if options.merge_kubeconfig {
        let merge = || Home::of_the_person()?.merge(&read_ours(&options.common.data_dir)?, CONTEXT);
        match merge() {
            Ok(_) => published.merged = true,
            Err(error) => eprintln!("landfall: --merge-kubeconfig changed nothing: {error:#}"),
        }
    }
    published
}

/// Publishes the kubeconfig again whenever it has changed.
pub(crate) async fn keep_published(data_dir: &Path, published: &Published) {
    let mut last = read_ours(data_dir).unwrap_or_default();
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        let Ok(ours) = read_ours(data_dir) else { continue };
        if ours == last {
            continue;
        }
        let copied = published.copy.as_ref().and_then(|_| Some(Home::behind_sudo()?.copy(&ours)));
        let merged = published.merged.then(|| Home::of_the_person()?.merge(&ours, CONTEXT));
        for error in [copied, merged].into_iter().flatten().filter_map(Result::err) {
            eprintln!("landfall: a copy of the kubeconfig is out of date: {error:#}");
        }
        last = ours;
    }
}

/// A home directory, and the user whose rights apply in it.
struct Home {
    path: PathBuf,
    /// None: the user who runs this process.
    user: Option<(Uid, Gid)>,
}

impl Home {
    /// The home of the user who called sudo. None: landfall was not started with sudo.
    fn behind_sudo() -> Option<Home> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
        if !nix::unistd::geteuid().is_root() {
            return None;
        }
        let uid = Uid::from_raw(number("SUDO_UID")?);
        let gid = Gid::from_raw(number("SUDO_GID")?);
        if uid.is_root() {
            return None;
        }
        let named = std::env::var_os("SUDO_HOME").map(PathBuf::from);
        let path = named.or_else(|| Some(User::from_uid(uid).ok()??.dir))?;
        Some(Home { path, user: Some((uid, gid)) })
    }

    fn of_the_person() -> anyhow::Result<Home> {
        if let Some(home) = Home::behind_sudo() {
            return Ok(home);
        }
        let path = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let path = path.context("HOME is not set, so there is no ~/.kube/config")?;
        Ok(Home { path: path.into(), user: None })
    }

    /// Writes `~/.kube/landfall.yaml`.
    fn copy(&self, ours: &str) -> anyhow::Result<PathBuf> {
        self.with_its_rights(|kube| {
            let path = kube.join(COPY);
            replace(&path, ours, PRIVATE, None)?;
            Ok(path)
        })
    }

    /// Adds a context to `~/.kube/config`.
    fn merge(&self, ours: &str, context: &str) -> anyhow::Result<PathBuf> {
        self.with_its_rights(|kube| merge_into(&kube.join("config"), ours, context))
    }

    /// Runs `work` on `~/.kube`, which is created if it is missing, with the file system rights of this
    /// home's user. These belong to a thread, so the work has one of its own.
    fn with_its_rights<T: Send>(
        &self,
        work: impl FnOnce(&Path) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let run = || {
            if let Some((uid, gid)) = self.user {
                setfsgid(gid);
                setfsuid(uid);
            }
            let kube = self.path.join(".kube");
            fs::DirBuilder::new()
                .mode(0o750)
                .create(&kube)
                .or_else(|error| if kube.is_dir() { Ok(()) } else { Err(error) })
                .with_context(|| format!("cannot create {}", kube.display()))?;
            work(&kube)
        };
        std::thread::scope(|scope| scope.spawn(run).join())
            .unwrap_or_else(|_| bail!("writing the kubeconfig failed unexpectedly"))
    }
}

/// Adds our cluster, user and context to this file, which may not exist yet.
fn merge_into(path: &Path, ours: &str, context: &str) -> anyhow::Result<PathBuf> {
    // A link stays a link: what it points to is replaced.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let before = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let after = merged(&before, ours, context)
        .with_context(|| format!("{} was left as it is", path.display()))?;
    let Some(after) = after else { return Ok(path) };
    let existing = fs::metadata(&path).ok();
    if existing.is_some() && before.contains('#') {
        keep_comments(&path, &before)?;
    }
    let mode = existing.as_ref().map_or(PRIVATE, |found| found.mode() & 0o777);
    replace(&path, &after, mode, existing.as_ref())?;
    Ok(path)
}

/// The first version with comments is kept beside the file, because the merged one has none.
fn keep_comments(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".before-landfall");
    let kept = PathBuf::from(name);
    if kept.exists() {
        return Ok(());
    }
    replace(&kept, text, PRIVATE, None)?;
    eprintln!(
        "landfall: the merged kubeconfig has no comments; the previous file is kept as {}",
        kept.display()
    );
    Ok(())
}

/// The text of a kubeconfig with our cluster in it. None: it is there already.
fn merged(before: &str, ours: &str, context: &str) -> anyhow::Result<Option<String>> {
    let found = parse(before)?;
    let ours = parse(ours).context("landfall's own kubeconfig")?;
    let mut config = if found.is_null() {
        json!({ "apiVersion": "v1", "kind": "Config", "preferences": {} })
    } else {
        found.clone()
    };
    ensure!(config.is_object(), "it is not a kubeconfig");
    let entries = [
        ("clusters", "cluster", ours["clusters"][0]["cluster"].clone()),
        ("users", "user", ours["users"][0]["user"].clone()),
        ("contexts", "context", json!({ "cluster": context, "user": context })),
    ];
    check_owner(&config, context, &entries[0].2)?;
    for (list, field, value) in entries {
        let list = &mut config[list];
        if list.is_null() {
            *list = json!([]);
        }
        let list = list.as_array_mut().context("it is not a kubeconfig: a list is missing")?;
        match list.iter_mut().find(|entry| entry["name"] == context) {
            Some(entry) if field == "context" => keep_namespace(&mut entry[field], value),
            Some(entry) => entry[field] = value,
            None => list.push(json!({ "name": context, field: value })),
        }
    }
    if config["current-context"].as_str().unwrap_or_default().is_empty() {
        config["current-context"] = json!(context);
    }
    if config == found {
        return Ok(None);
    }
    let text = api::yaml::from_json(&config);
    // JSON is YAML too, for values that the writer and kubectl would understand differently.
    let exact = parse(&text).is_ok_and(|again| again == config);
    Ok(Some(if exact { text } else { format!("{config:#}\n") }))
}

/// The namespace that a person chose for the context stays.
fn keep_namespace(context: &mut Value, ours: Value) {
    let namespace = context.get("namespace").cloned();
    *context = ours;
    if let Some(namespace) = namespace {
        context["namespace"] = namespace;
    }
}

/// An entry of that name may be replaced only if it leads to this cluster.
fn check_owner(config: &Value, context: &str, cluster: &Value) -> anyhow::Result<()> {
    let entry = |list: &str| {
        let entries = config[list].as_array()?;
        entries.iter().find(|entry| entry["name"] == context)
    };
    let authority = |cluster: &Value| cluster["certificate-authority-data"].clone();
    let is_ours =
        entry("clusters").is_some_and(|found| authority(&found["cluster"]) == authority(cluster));
    let exists = ["clusters", "users", "contexts"].into_iter().any(|list| entry(list).is_some());
    ensure!(
        is_ours || !exists,
        "it already has an entry {context} for another cluster. Choose another name with `landfall \
         kubeconfig --merge --context NAME`, or remove that entry: kubectl config delete-context \
         {context}; kubectl config delete-cluster {context}; kubectl config delete-user {context}"
    );
    Ok(())
}

/// Null: the text is empty.
fn parse(text: &str) -> anyhow::Result<Value> {
    let document = api::yaml::to_json(text.as_bytes()).context("it is not valid YAML")?;
    ensure!(document.duplicates.is_empty(), "it is not valid YAML: {}", document.duplicates);
    Ok(document.value)
}

/// Writes a temporary file beside it, then renames. Keeps the owner of what is replaced.
fn replace(path: &Path, text: &str, mode: u32, old: Option<&fs::Metadata>) -> anyhow::Result<()> {
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let name = format!(".{}.{:08x}.partial", name.to_string_lossy(), clock::random_u64());
    let partial = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(PRIVATE).open(&partial)?;
        file.write_all(text.as_bytes())?;
        if let Some(old) = old {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&partial);
        anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "\
apiVersion: v1
kind: Config
clusters:
- name: landfall
  cluster: {server: 'https://127.0.0.1:6443', certificate-authority-data: QUJD}
users:
- name: kubernetes-admin
  user: {client-certificate-data: Q0VSVA==, client-key-data: S0VZ}
contexts:
- name: kubernetes-admin@landfall
  context: {cluster: landfall, user: kubernetes-admin}
current-context: kubernetes-admin@landfall
";

    const THEIRS: &str = "\
# The cluster at work.
apiVersion: v1
kind: Config
clusters: [{name: work, cluster: {server: 'https://work:6443', insecure-skip-tls-verify: true}}]
users: [{name: me, user: {token: '0123', password: 'yes'}}]
contexts: [{name: work, context: {cluster: work, user: me}}]
current-context: work
preferences: {colors: true}
extensions: [{name: kept, extension: {a: [1, 2.5, null]}}]
";

    fn value(text: &str) -> Value {
        parse(text).unwrap()
    }

    #[test]
    fn merging_adds_three_entries_and_changes_nothing_else() {
        let text = merged(THEIRS, OURS, "landfall").unwrap().unwrap();
        let mut after = value(&text);
        for (list, field) in [("clusters", "cluster"), ("users", "user"), ("contexts", "context")] {
            let added = after[list].as_array_mut().unwrap().pop().unwrap();
            assert_eq!(added["name"], "landfall");
            assert!(added[field].is_object(), "{added}");
        }
        assert_eq!(after, value(THEIRS), "{text}");
        assert_eq!(
            merged(&text, OURS, "landfall").unwrap(),
            None,
            "a second merge changes nothing"
        );
    }

    #[test]
    fn a_new_kubeconfig_gets_the_current_context() {
        let after = value(&merged("", OURS, "landfall").unwrap().unwrap());
        assert_eq!(after["current-context"], "landfall");
        assert_eq!(after["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
        assert_eq!(after["users"][0]["user"]["client-key-data"], "S0VZ");
        assert_eq!(
            after["contexts"][0]["context"],
            json!({"cluster": "landfall", "user": "landfall"})
        );
    }

    #[test]
    fn a_renewed_certificate_replaces_the_old_one_and_keeps_the_namespace() {
        let first = merged(THEIRS, OURS, "landfall").unwrap().unwrap();
        let mut chosen = value(&first);
        chosen["contexts"][1]["context"]["namespace"] = json!("shop");
        let renewed = OURS.replace("S0VZ", "TkVX");
        let after = value(&merged(&chosen.to_string(), &renewed, "landfall").unwrap().unwrap());
        assert_eq!(after["users"].as_array().unwrap().len(), 2);
        assert_eq!(after["users"][1]["user"]["client-key-data"], "TkVX");
        assert_eq!(after["contexts"][1]["context"]["namespace"], "shop");
    }

    #[test]
    fn an_entry_of_another_cluster_is_never_replaced() {
        let other = OURS.replace("QUJD", "WFla");
        let theirs = merged("", &other, "landfall").unwrap().unwrap();
        let error = merged(&theirs, OURS, "landfall").unwrap_err().to_string();
        assert!(error.contains("another cluster") && error.contains("--context"), "{error}");
        let context = "contexts: [{name: landfall, context: {cluster: x, user: y}}]";
        assert!(merged(context, OURS, "landfall").is_err());
        assert!(merged(&theirs, OURS, "second").unwrap().is_some());
    }

    #[test]
    fn a_file_that_cannot_be_parsed_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        for broken in ["a: b: c", "just text", "clusters: {}", "users: []\nusers: []", "[1, 2]"] {
            fs::write(&path, broken).unwrap();
            let error = format!("{:#}", merge_into(&path, OURS, "landfall").unwrap_err());
            assert!(error.contains("was left as it is"), "{broken}: {error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), broken);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn mode_link_and_comments_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("config"));
        fs::write(&real, THEIRS).unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        merge_into(&link, OURS, "landfall").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
        let kept = fs::read_to_string(dir.path().join("real.before-landfall")).unwrap();
        assert_eq!(kept, THEIRS);
    }
}
