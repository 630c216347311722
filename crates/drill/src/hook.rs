//! The preStop hook of a container, as far as a drill can vary it.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use serde_json::{Value, json};

/// What a preStop hook does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hook {
    None,
    /// It sleeps: the action `sleep`, or the command `sleep N`.
    Sleep(u32),
    /// Anything else, in a few words. A drill measures with it and does not change it.
    Other(String),
}

impl Hook {
    pub(crate) fn of(container: &Container) -> Hook {
        let lifecycle = container.lifecycle.as_ref();
        match lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
            None => Hook::None,
            Some(handler) => Hook::of_handler(handler),
        }
    }

    fn of_handler(handler: &LifecycleHandler) -> Hook {
        if let Some(sleep) = &handler.sleep {
            return match u32::try_from(sleep.seconds) {
                Ok(seconds) => Hook::Sleep(seconds),
                Err(_) => Hook::Other(format!("sleeps {} s", sleep.seconds)),
            };
        }
        if let Some(exec) = &handler.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            return match slept(command) {
                Some(seconds) => Hook::Sleep(seconds),
                None => Hook::Other(format!("runs `{}`", command.join(" "))),
            };
        }
        if handler.http_get.is_some() {
            return Hook::Other("sends an HTTP request".to_owned());
        }
        Hook::Other("is of an unknown kind".to_owned())
    }

    /// Seconds that it sleeps, as far as known.
    pub(crate) fn seconds(&self) -> u32 {
        match self {
            Hook::Sleep(seconds) => *seconds,
            Hook::None | Hook::Other(_) => 0,
        }
    }
}

/// The seconds of a command that only sleeps.
fn slept(command: &[String]) -> Option<u32> {
    let words: Vec<&str> = match command {
        [shell, flag, script] if is_program(shell, "sh") || is_program(shell, "bash") => {
            (flag == "-c").then(|| script.split_whitespace().collect())?
        }
        direct => direct.iter().map(String::as_str).collect(),
    };
    match words[..] {
        [sleep, seconds] if is_program(sleep, "sleep") => {
            seconds.strip_suffix('s').unwrap_or(seconds).parse().ok()
        }
        _ => None,
    }
}

fn is_program(word: &str, name: &str) -> bool {
    word.rsplit('/').next() == Some(name)
}

/// The `lifecycle` of a strategic merge patch that makes the hook a sleep of this length; zero removes it.
pub(crate) fn sleep_patch(seconds: u32, present: &Hook) -> Value {
    match (seconds, present) {
        (0, _) => json!({ "preStop": null }),
        (seconds, Hook::None) => json!({ "preStop": { "sleep": { "seconds": seconds } } }),
        // The other handlers are named, because a merge keeps what it does not name.
        (seconds, _) => json!({ "preStop": {
            "sleep": { "seconds": seconds }, "exec": null, "httpGet": null, "tcpSocket": null,
        }}),
    }
}

/// The `lifecycle` of a strategic merge patch that puts back the original.
pub(crate) fn original_patch(original: Option<&Value>) -> Value {
    let Some(original) = original else { return Value::Null };
    let mut patch = original.clone();
    match patch.get_mut("preStop").and_then(Value::as_object_mut) {
        Some(hook) => {
            for handler in ["sleep", "exec", "httpGet", "tcpSocket"] {
                hook.entry(handler).or_insert(Value::Null);
            }
        }
        None => patch["preStop"] = Value::Null,
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(lifecycle: Value) -> Hook {
        let container = json!({ "name": "c", "lifecycle": lifecycle });
        Hook::of(&serde_json::from_value(container).unwrap())
    }

    #[test]
    fn sleeps_are_recognized_however_they_are_written() {
        let exec = |command: Value| json!({"preStop": {"exec": {"command": command}}});
        for (lifecycle, seconds) in [
            (json!({"preStop": {"sleep": {"seconds": 7}}}), 7),
            (exec(json!(["sleep", "5"])), 5),
            (exec(json!(["/bin/sleep", "5s"])), 5),
            (exec(json!(["sh", "-c", "sleep 10"])), 10),
            (exec(json!(["/bin/bash", "-c", " sleep  3 "])), 3),
        ] {
            assert_eq!(hook(lifecycle.clone()), Hook::Sleep(seconds), "{lifecycle}");
        }
        for other in [
            exec(json!(["sh", "-c", "nginx -s quit; sleep 10"])),
            exec(json!(["sleep", "0.5"])),
            exec(json!([])),
            json!({"preStop": {"httpGet": {"port": 80}}}),
            json!({"preStop": {}}),
        ] {
            assert!(matches!(hook(other.clone()), Hook::Other(_)), "{other}");
        }
        assert_eq!(hook(json!({"postStart": {"sleep": {"seconds": 1}}})), Hook::None);
        assert_eq!(hook(Value::Null), Hook::None);
    }

    #[test]
    fn the_original_is_put_back_whatever_is_there_now() {
        assert_eq!(original_patch(None), Value::Null);
        let post = json!({"postStart": {"sleep": {"seconds": 1}}});
        assert_eq!(original_patch(Some(&post))["preStop"], Value::Null);
        let exec = json!({"preStop": {"exec": {"command": ["sleep", "5"]}}});
        let patch = original_patch(Some(&exec));
        assert_eq!(patch["preStop"]["sleep"], Value::Null, "the drill's sleep goes");
        assert_eq!(patch["preStop"]["exec"], exec["preStop"]["exec"]);
    }
}
