//! A simulated host shutdown: Debian's logind on a private message bus, and a double of systemd that only records calls.
//! Nothing here can reach the real ones.

use crate::harness::{Background, signal};
use dbus::{Bus, Value};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use wire::{Kind, Message};

#[allow(dead_code, reason = "only the test's side of it")]
#[path = "../../../../../node/src/shutdown/dbus.rs"]
mod dbus;
#[path = "../../../../../node/src/shutdown/wire.rs"]
mod wire;

const START_MAX: Duration = Duration::from_secs(30);
const JOB: &str = "/org/freedesktop/systemd1/job/1";
const BUS: dbus::Target = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus");

const BUS_CONFIG: &str = r#"<!DOCTYPE busconfig PUBLIC
  "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
  "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=BUS</listen>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
    <allow send_type="method_call"/><allow send_type="signal"/>
  </policy>
</busconfig>
"#;

/// Replaces /run/systemd and /etc/systemd, where logind has its state and its settings.
const START: &str = r#"
mkdir -p /run/systemd /etc/systemd
mount -t tmpfs none /run/systemd
mount -t tmpfs none /etc/systemd
mkdir /run/systemd/inhibit /run/systemd/seats /run/systemd/users /run/systemd/sessions
dbus-daemon --config-file="$1/bus.conf" --nofork --nopidfile & echo "bus $!"
until [ -S "$1/bus" ]; do sleep 0.05; done
echo "logind $$"
DBUS_SYSTEM_BUS_ADDRESS="unix:path=$1/bus" exec /lib/systemd/systemd-logind
"#;

pub(crate) struct Host {
    logind: Background,
    bus: u32,
    socket: PathBuf,
    notes: Arc<Mutex<Notes>>,
    job_ends: mpsc::Sender<()>,
}

#[derive(Default)]
struct Notes {
    stopping: bool,
    /// The unit that was started, and the content of the watched file at that time.
    started: Option<(String, String)>,
}

impl Host {
    /// The content of the file `watched` is recorded when the host goes down.
    pub(crate) fn start(dir: &Path, watched: &Path) -> Host {
        let socket = dir.join("bus");
        let config = BUS_CONFIG.replace("BUS", &socket.display().to_string());
        std::fs::write(dir.join("bus.conf"), config).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", START, "sh"]).arg(dir);
        let logind = Background::spawn(&mut command);
        let line = logind.line("bus ", START_MAX);
        let bus = line.split(' ').nth(1).and_then(|id| id.parse().ok()).expect("its number");
        logind.line("logind ", START_MAX);
        let notes = Arc::new(Mutex::new(Notes::default()));
        let (job_ends, ends) = mpsc::channel(1);
        let systemd =
            Systemd { logind: logind.id(), notes: notes.clone(), watched: watched.to_owned() };
        let address = format!("unix:path={}", socket.display());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(systemd.serve(&address, ends));
        });
        let host = Host { logind, bus, socket, notes, job_ends };
        host.until("logind answers", || host.asks("ListInhibitors", &[]).contains("array"));
        host
    }

    pub(crate) fn bus_address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    /// The command prefix that runs a program in the namespaces of logind.
    pub(crate) fn entrance(&self) -> Vec<String> {
        let id = self.logind.id().to_string();
        ["nsenter", "--mount", "--target", &id, "--"].map(str::to_owned).to_vec()
    }

    /// Calls a method of logind and returns its output.
    pub(crate) fn asks(&self, member: &str, args: &[&str]) -> String {
        let method = format!("org.freedesktop.login1.Manager.{member}");
        self.send(&[&["/org/freedesktop/login1", &method], args].concat())
    }

    pub(crate) fn delay(&self) -> String {
        let get = "org.freedesktop.DBus.Properties.Get";
        let of = "string:org.freedesktop.login1.Manager";
        self.send(&["/org/freedesktop/login1", get, of, "string:InhibitDelayMaxUSec"])
    }

    fn send(&self, args: &[&str]) -> String {
        let mut command = Command::new("dbus-send");
        command.args([&format!("--bus={}", self.bus_address()), "--print-reply"]);
        let output = command.arg("--dest=org.freedesktop.login1").args(args).output();
        let output = output.expect("dbus-send is there: `scripts/install all` installs it");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the shutdown unit was started; returns it and the content of the watched file.
    pub(crate) fn went_down(&self) -> (String, String) {
        self.until("the host goes down", || self.notes.lock().unwrap().started.is_some());
        self.notes.lock().unwrap().started.clone().unwrap()
    }

    /// Ends the shutdown although the host stays up.
    pub(crate) fn stays_up(&self) {
        self.job_ends.blocking_send(()).unwrap();
    }

    pub(crate) fn is_stopping(&self) {
        self.notes.lock().unwrap().stopping = true;
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, so: impl Fn() -> bool) {
        for _ in 0..600 {
            if so() {
                return;
            }
            let _ = Command::new("sleep").arg("0.05").status();
        }
        panic!("timed out waiting until {what}; logind: {}", self.logind.stderr());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        signal(self.bus, "TERM");
    }
}

/// Answers the calls of logind and landfall to systemd, and starts nothing.
struct Systemd {
    logind: u32,
    notes: Arc<Mutex<Notes>>,
    watched: PathBuf,
}

impl Systemd {
    /// Runs until the bus is closed.
    async fn serve(self, address: &str, mut job_ends: mpsc::Receiver<()>) {
        let mut bus = Bus::connect(address).await.unwrap();
        let name = vec!["org.freedesktop.systemd1".into(), Value::Unsigned(0)];
        bus.call(BUS, "RequestName", name).await.unwrap();
        loop {
            let told = tokio::select! {
                message = bus.next() => match message {
                    Ok(message) if message.kind == Kind::Call => self.answer(&message),
                    Ok(_) => continue,
                    Err(_) => return,
                },
                Some(()) = job_ends.recv() => job_removed(),
            };
            if bus.send(told).await.is_err() {
                return;
            }
        }
    }

    fn answer(&self, call: &Message) -> Message {
        let text = |place: usize| match call.body.get(place) {
            Some(Value::Text(text)) => text.as_str(),
            _ => "",
        };
        let variant = |text: &str| vec![Value::Variant(Box::new(Value::from(text)))];
        let mut notes = self.notes.lock().unwrap();
        let body = match (call.member.as_str(), text(1)) {
            ("Get", "LoadState") => variant("loaded"),
            ("Get", "SystemState") => variant(if notes.stopping { "stopping" } else { "running" }),
            ("StartUnit", _) => {
                let seen = std::fs::read_to_string(&self.watched).unwrap_or_default();
                notes.started = Some((text(0).to_owned(), seen));
                vec![Value::Path(JOB.to_owned())]
            }
            ("KillUnit", _) => {
                signal(self.logind, "HUP");
                Vec::new()
            }
            (_, _) => Vec::new(),
        };
        Message {
            destination: call.sender.clone(),
            answers: call.serial,
            body,
            ..Message::new(Kind::Return)
        }
    }
}

fn job_removed() -> Message {
    Message {
        path: "/org/freedesktop/systemd1".into(),
        interface: "org.freedesktop.systemd1.Manager".into(),
        member: "JobRemoved".into(),
        body: vec![
            Value::Unsigned(1),
            Value::Path(JOB.to_owned()),
            "poweroff.target".into(),
            "canceled".into(),
        ],
        ..Message::new(Kind::Signal)
    }
}
