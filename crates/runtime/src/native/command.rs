//! Command and environment of a container, from its spec and its image (N-49).

use super::image::ImageConfig;
use crate::{ContainerSpec, Error, Result};

/// PATH if neither the image nor the spec sets it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) fn command(spec: &ContainerSpec, image: &ImageConfig) -> Result<Vec<String>> {
    let given = |list: &Option<Vec<String>>| list.clone().filter(|list| !list.is_empty());
    let (command, args) = (given(&spec.command), given(&spec.args));
    let args = match (&command, args) {
        (_, Some(args)) => args,
        (Some(_), None) => Vec::new(),
        (None, None) => image.cmd.clone(),
    };
    let mut whole = command.unwrap_or_else(|| image.entrypoint.clone());
    whole.extend(args);
    if whole.is_empty() {
        return Err(Error::Refused("no command specified".into()));
    }
    Ok(whole)
}

/// The image's variables, overridden by those of the spec.
pub(crate) fn environment(
    spec: &ContainerSpec,
    image: &ImageConfig,
    home: Option<&str>,
) -> Vec<String> {
    let mut env: Vec<(String, String)> = Vec::new();
    let terminal = spec.tty.then(|| ("TERM".to_owned(), "xterm".to_owned()));
    let path = Some(("PATH".to_owned(), DEFAULT_PATH.to_owned()));
    let home = home.map(|home| ("HOME".to_owned(), home.to_owned()));
    let defaults = path.into_iter().chain(terminal).chain(home);
    for (name, value) in defaults.chain(image.env.iter().cloned()).chain(spec.env.iter().cloned()) {
        match env.iter_mut().find(|(known, _)| *known == name) {
            Some(entry) => entry.1 = value,
            None => env.push((name, value)),
        }
    }
    env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}
