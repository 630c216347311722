//! A node of a simulated cluster: a machine, and one agent after another on it.

use crate::cluster::WrapRuntime;
use crate::connection::{Connection, ServerHandle};
use crate::event_log::{Agent, Event, EventLog};
use crate::machine::Machine;
use crate::process_run::ProcessRun;
use crate::proxy::{NodeProxy, ProxyConfig, RuleTable};
use crate::random::Random;
use crate::runtime_handle::RuntimeHandle;
use client::Client;
use runtime::Runtime;
use server::authn::User;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The hardware of every simulated machine.
const HARDWARE: node::Hardware =
    node::Hardware { cores: 64, memory_bytes: 256 << 30, storage_bytes: 1 << 40 };
/// How long to wait before an agent that could not start is started again.
const START_AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) connection: Connection,
    pub(crate) machine: Arc<Machine>,
    /// The packet rules of Services.
    pub(crate) rules: RuleTable,
    state: Arc<Mutex<AgentState>>,
    task: JoinHandle<()>,
}

/// How the agents of a host differ from ordinary ones.
#[derive(Clone, Default)]
pub(crate) struct HostOptions {
    pub(crate) wrap_runtime: Option<WrapRuntime>,
    /// None: the host has no Service proxy.
    pub(crate) proxy: Option<ProxyConfig>,
}

/// The current run of the agent, and how long the host stays without an agent after it.
struct AgentState {
    process: Arc<ProcessRun>,
    downtime: Duration,
    /// The agent has crashed, and the next one has not started.
    down: bool,
}

/// What all runs of an agent share.
struct HostConfig {
    name: String,
    number: u16,
    seed: u64,
    directory: PathBuf,
    log: EventLog,
    machine: Arc<Machine>,
    rules: RuleTable,
    connection: Connection,
    options: HostOptions,
    grace: node::GraceAfterRestart,
}

impl Host {
    pub(crate) fn start(
        number: u16,
        seed: u64,
        server: ServerHandle,
        log: &EventLog,
        directory: PathBuf,
        options: HostOptions,
    ) -> Host {
        let name = format!("n{number}");
        let user = User::authenticated(format!("system:node:{name}"), &["system:nodes"]);
        let connection = Connection::new(server, user, Random::new(seed, 1000 + u64::from(number)));
        let machine = Machine::new(&name, number, log.clone());
        let rules = RuleTable::default();
        let config = HostConfig {
            machine: machine.clone(),
            rules: rules.clone(),
            name: name.clone(),
            number,
            seed,
            directory,
            log: log.clone(),
            connection: connection.clone(),
            options,
            grace: match seed % 2 {
                0 => node::GraceAfterRestart::Full,
                _ => node::GraceAfterRestart::Kept,
            },
        };
        let state = Arc::new(Mutex::new(AgentState {
            process: ProcessRun::new(),
            downtime: Duration::ZERO,
            down: false,
        }));
        let task = tokio::spawn(run_agents(config, state.clone()));
        Host { name, connection, machine, rules, state, task }
    }

    /// Crashes the agent after this many steps, in the middle of whatever it does then; 0: at once.
    pub(crate) fn crash_after(&self, steps: u64, downtime: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.downtime = downtime;
        match steps {
            0 => state.process.crash_now(),
            steps => state.process.crash_after(steps),
        }
    }

    /// Crashes the agent when it next stops a container, before the signal is sent.
    pub(crate) fn crash_at_stop(&self, downtime: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.downtime = downtime;
        state.process.crash_at_next_stop();
    }
}

impl Host {
    /// No agent runs here, and the cluster may not have noticed it yet.
    pub(crate) fn is_down(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).down
    }

    /// Cancels a planned crash.
    pub(crate) fn cancel_crash(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).process.cancel_crash();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run_agents(config: HostConfig, state: Arc<Mutex<AgentState>>) {
    for number in 1.. {
        let process = {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.down = false;
            state.process.clone()
        };
        let agent = Agent { node: config.name.as_str().into(), run: number };
        config.log.record(Event::AgentRun { agent: agent.clone(), running: true });
        tokio::select! {
            biased;
            () = process.crashed() => {}
            () = run_agent(&config, &agent, &process) => {}
        }
        config.log.record(Event::AgentRun { agent, running: false });
        let downtime = {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.process = ProcessRun::new();
            state.down = true;
            state.downtime
        };
        tokio::time::sleep(downtime).await;
    }
}

/// Runs the agent until this future is dropped.
async fn run_agent(host: &HostConfig, agent: &Agent, process: &Arc<ProcessRun>) {
    let connection =
        host.connection.of_process(process.clone()).observed_for(host.log.clone(), agent.clone());
    loop {
        let stream = (u64::from(host.number) << 32) + u64::from(agent.run);
        let runtime_handle: Arc<dyn Runtime> = Arc::new(RuntimeHandle {
            machine: host.machine.clone(),
            agent: agent.clone(),
            process: process.clone(),
            log: host.log.clone(),
            random: Mutex::new(Random::new(host.seed, stream)),
        });
        let runtime = match &host.options.wrap_runtime {
            Some(wrap) => wrap(runtime_handle),
            None => runtime_handle,
        };
        let client = Client::in_process(connection.clone());
        let traffic = host.options.proxy.as_ref().map(|config| -> Arc<dyn node::Traffic> {
            Arc::new(NodeProxy {
                client: client.clone(),
                agent: agent.clone(),
                process: process.clone(),
                log: host.log.clone(),
                table: host.rules.clone(),
                config: config.clone(),
                running: Mutex::default(),
            })
        });
        let [more, number] = host.number.to_be_bytes();
        let config = node::Config {
            name: host.name.clone(),
            data_dir: host.directory.clone(),
            log_dir: host.directory.join("log"),
            node_ips: vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2u8.wrapping_add(more), number))],
            endpoint: None,
            hardware: Some(HARDWARE),
            runtime,
            link: "sim".into(),
            manifests: None,
            cluster_dns: Vec::new(),
            traffic,
            cgroup: "/sim".into(),
            eviction_hard: Some(String::new()),
            pod_pids_limit: None,
            seccomp_default: false,
            lease: node::LEASE_DURATION,
            grace_after_restart: host.grace,
            shutdown: node::Periods::default(),
            version: server::discovery::git_version().to_owned(),
        };
        match node::start(client, config).await {
            Ok(_running) => std::future::pending::<()>().await,
            Err(error) => host.log.note(format!("{agent} cannot start: {error}")),
        }
        tokio::time::sleep(START_AGAIN).await;
    }
}
