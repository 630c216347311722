//! Which kubeconfig commands such as `landfall timeline` and `landfall drill` use.

use super::COPY;
use crate::command::DATA_DIR;
use anyhow::Context;
use std::path::{Path, PathBuf};

/// The named file, else the one that kubectl would use, else one that `landfall up` has written.
pub(crate) fn find(given: Option<&Path>, data_dir: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    if let Some(data_dir) = data_dir {
        return Ok(data_dir.join("kubeconfig"));
    }
    let variable = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
    if let Some(first) = variable.and_then(|paths| std::env::split_paths(&paths).next()) {
        return Ok(first);
    }
    let kube = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube"));
    let in_home = |name: &str| kube.as_ref().map(|kube| kube.join(name));
    let in_data_dir = Path::new(DATA_DIR).join("kubeconfig");
    let usual = [in_home("config"), in_home(COPY), Some(in_data_dir)];
    usual.into_iter().flatten().find(|path| path.is_file()).context(
        "no kubeconfig found: name one with --kubeconfig, or export KUBECONFIG; `landfall up` prints \
         where its own is",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Cli, Command};
    use clap::Parser;

    fn found(words: &[&str]) -> Result<PathBuf, String> {
        let line = ["landfall", "timeline", "web"].iter().chain(words);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Timeline(options) = cli.command else { unreachable!("it says timeline") };
        let found = find(options.kubeconfig.as_deref(), options.data_dir.as_deref());
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn a_data_directory_names_its_kubeconfig() {
        assert_eq!(found(&["--data-dir", "/x"]), Ok("/x/kubeconfig".into()));
        assert_eq!(found(&["--kubeconfig", "/y"]), Ok("/y".into()));
        assert!(found(&["--data-dir", "/x", "--kubeconfig", "/y"]).is_err());
    }
}
