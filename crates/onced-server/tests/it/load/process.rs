//! The gateway under load as a process: started with few words in its log, watched from outside, by what Linux says of
//! it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use testkit::Database;
use testkit::process::{Process, free_port};

use crate::fixture::{LIMIT, route};

/// How often progress is shown.
const SHOWN: Duration = Duration::from_secs(10);

/// A gateway that says only what is wrong.
pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    process: Process,
    _folder: tempfile::TempDir,
}

impl Gateway {
    pub(super) async fn start(database: &Database, upstream: SocketAddr, connections: usize) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let folder = tempfile::tempdir().expect("a folder for the configuration");
        let upstream = format!("http://{upstream}");
        // What was lost may be sent again soon, and nothing is kept open for long.
        let more = "lease = \"4s\"\nmax_attempts = 1000\nupstream_keep_alive = \"1s\"\n";
        let routes = [("order", "same-database"), ("pay", "idempotent"), ("call", "external")]
            .map(|(name, effect)| route(name, &format!("/{name}"), &upstream, effect, more))
            .concat();
        let url = database.url();
        let text = format!(
            "listen = \"{address}\"\n[store]\nurl = \"{url}\"\nmax_connections = {connections}\nbusy_timeout = \"20s\"\n\
             [log]\nlevel = \"error\"\n{routes}"
        );
        let config = folder.path().join("onced.toml");
        std::fs::write(&config, text).expect("the configuration can be written");
        let config = config.to_str().expect("a path of plain characters");
        let process =
            Process::spawn(env!("CARGO_BIN_EXE_onced"), ["serve", "--config", config], [("RUST_BACKTRACE", "0")]);
        let gateway = Self { address, process, _folder: folder };
        let started = Instant::now();
        while tokio::net::TcpStream::connect(address).await.is_err() {
            assert!(started.elapsed() < LIMIT, "it does not listen: {:?}", gateway.process.stderr().all());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        gateway
    }

    fn id(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    /// How many files it has open.
    pub(super) fn files(&self) -> usize {
        files(self.id())
    }

    /// Waits until it has no more files open than that.
    pub(super) async fn files_fall_to(&self, most: usize) -> usize {
        let started = Instant::now();
        loop {
            let files = self.files();
            if files <= most {
                return files;
            }
            assert!(started.elapsed() < LIMIT, "{files} files are left open, and {most} would be right");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn files(id: u32) -> usize {
    std::fs::read_dir(format!("/proc/{id}/fd")).expect("it runs").count()
}

/// Resident memory in KiB.
fn memory(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// Measures again and again, and shows progress.
pub(super) struct Watch {
    id: u32,
    name: String,
    length: Duration,
    started: Instant,
    samples: Mutex<(Measured, Instant)>,
}

impl Watch {
    pub(super) fn start(gateway: &Gateway, name: &str, length: Duration) -> Self {
        let (id, started) = (gateway.id(), Instant::now());
        Self { id, name: name.to_owned(), length, started, samples: Mutex::new((Measured::default(), started)) }
    }

    /// Measures once; `words` say how far the load has come.
    pub(super) fn sample(&self, words: &str) {
        let (memory, files) = (memory(self.id), files(self.id));
        let mut samples = self.samples.lock().expect("nobody panics with it");
        samples.0.memory.push(memory);
        samples.0.most_files = samples.0.most_files.max(files);
        if samples.1.elapsed() >= SHOWN {
            samples.1 = Instant::now();
            let (now, all) = (self.started.elapsed().as_secs(), self.length.as_secs());
            println!("load on {}: {now} of {all} s; {words}; {} MiB, {files} files", self.name, memory / 1024);
        }
    }

    pub(super) fn end(self) -> Measured {
        self.samples.into_inner().expect("nobody panics with it").0
    }
}

/// What was measured, in order.
#[derive(Default)]
pub(super) struct Measured {
    memory: Vec<u64>,
    most_files: usize,
}

impl Measured {
    /// The median of the memory in that fifth of the time, from 0.
    pub(super) fn fifth(&self, number: usize) -> u64 {
        let all = self.memory.len();
        let mut part = self.memory[all * number / 5..all * (number + 1) / 5].to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |kib: u64| kib / 1024;
        let (early, late, most) = (self.fifth(1), self.fifth(4), self.memory.iter().max().copied().unwrap_or(0));
        write!(
            f,
            "{} MiB of memory in the second fifth, {} MiB in the last, {} MiB at most; {} files open at most",
            mib(early),
            mib(late),
            mib(most),
            self.most_files
        )
    }
}
