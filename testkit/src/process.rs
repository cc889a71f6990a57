//! Child processes: their lines as events, signals, and certain death at the end of the test.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// What can be sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL: ends it with no chance to do anything.
    Kill,
    /// SIGSTOP: freezes it.
    Stop,
    /// SIGCONT: thaws it.
    Continue,
    /// SIGTERM: asks it to end.
    Terminate,
    /// SIGINT: as Ctrl-C does.
    Interrupt,
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    errors: Lines,
    output: Lines,
}

impl Process {
    /// Starts a program. Standard output and error are kept line by line; the input is empty.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn spawn<A, K, V>(
        program: impl AsRef<Path>,
        args: impl IntoIterator<Item = A>,
        env: impl IntoIterator<Item = (K, V)>,
    ) -> Self
    where
        A: AsRef<OsStr>,
        K: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let mut command = Command::new(program.as_ref());
        command.args(args).envs(env);
        Self::start(command)
    }

    /// [`Process::spawn`] for a command with more to set, such as its folder.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let name = command.as_std().get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let output = Lines::read(child.stdout.take().expect("stdout is piped"));
        let errors = Lines::read(child.stderr.take().expect("stderr is piped"));
        Self { name, child, errors, output }
    }

    /// The lines of standard error.
    #[must_use]
    pub fn stderr(&self) -> &Lines {
        &self.errors
    }

    /// The lines of standard output.
    #[must_use]
    pub fn stdout(&self) -> &Lines {
        &self.output
    }

    /// Waits for a line of standard error, also one that came before.
    ///
    /// # Panics
    /// After `limit`, or when the program ends without it; the message has all lines.
    pub async fn wait_for_line(&self, wanted: impl Fn(&str) -> bool, limit: Duration) -> String {
        match self.errors.wait_for(wanted, limit).await {
            Ok(line) => line,
            Err(why) => panic!("{}: {why}; standard error was:\n{}", self.name, self.errors.all().join("\n")),
        }
    }

    /// The process id, or `None` after its end was noticed.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal; nothing happens where the process has ended.
    ///
    /// # Panics
    /// Where the system refuses.
    pub fn signal(&self, signal: Signal) {
        // The id is ours until the end was waited for, so no stranger can be hit.
        let Some(pid) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) else {
            return;
        };
        let signal = match signal {
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Stop => rustix::process::Signal::STOP,
            Signal::Continue => rustix::process::Signal::CONT,
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Interrupt => rustix::process::Signal::INT,
        };
        rustix::process::kill_process(pid, signal).expect("the signal cannot be sent");
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Panics
    /// Where it does not go.
    pub async fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::Kill);
        self.wait(Duration::from_secs(30)).await
    }

    /// Waits until it has ended by itself, and all its lines have been read.
    ///
    /// # Panics
    /// After `limit`; the message has all lines.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let ended = tokio::time::timeout(limit, async {
            let status = self.child.wait().await.expect("the process cannot be waited for");
            // Its own children may keep the pipes open for longer than it lives; they are not waited for.
            drop(tokio::time::timeout(Duration::from_secs(1), self.errors.closed()).await);
            drop(tokio::time::timeout(Duration::from_secs(1), self.output.closed()).await);
            status
        });
        match ended.await {
            Ok(status) => status,
            Err(_) => panic!("{} has not ended; standard error was:\n{}", self.name, self.errors.all().join("\n")),
        }
    }
}

/// The lines of one output, kept as they come. Clones read the same lines.
#[derive(Clone, Debug)]
pub struct Lines(watch::Receiver<Vec<String>>);

impl Lines {
    fn read(source: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let (lines, kept) = watch::channel(Vec::new());
        tokio::spawn(async move {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while source.read_until(b'\n', &mut line).await.is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
                lines.send_modify(|lines| lines.push(text));
                line.clear();
            }
        });
        Self(kept)
    }

    /// All lines so far.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// All lines from the first one on, then each new one as it comes, until the program closes its output.
    pub fn stream(&self) -> impl Stream<Item = String> + Send + use<> {
        stream::unfold((self.0.clone(), 0), |(mut lines, next)| async move {
            let line = lines.wait_for(|lines| lines.len() > next).await.ok().map(|lines| lines[next].clone())?;
            Some((line, (lines, next + 1)))
        })
    }

    /// Waits for a line, also one that came before.
    ///
    /// # Errors
    /// In words, after `limit` or when the output was closed without it.
    pub async fn wait_for(&self, wanted: impl Fn(&str) -> bool, limit: Duration) -> Result<String, String> {
        let mut lines = self.0.clone();
        let found = tokio::time::timeout(limit, lines.wait_for(|lines| lines.iter().any(|line| wanted(line)))).await;
        match found {
            Ok(Ok(lines)) => Ok(lines.iter().find(|line| wanted(line)).cloned().unwrap_or_default()),
            Ok(Err(_)) => Err("the output ended without that line".to_owned()),
            Err(_) => Err(format!("no such line within {limit:?}")),
        }
    }

    async fn closed(&self) {
        let mut lines = self.0.clone();
        while lines.changed().await.is_ok() {}
    }
}

/// A port of 127.0.0.1 on which nothing listens at this moment.
///
/// It lies below the range from which the system takes ports for outgoing connections, so none of those can take it.
/// Prefer a program that listens on port 0 and says which one it got.
///
/// # Panics
/// Where none is free.
#[must_use]
pub fn free_port() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    let mut candidates = (0..1000_u32).map(|index| {
        let random = RandomState::new().hash_one(index);
        u16::try_from(12_000 + random % 20_000).unwrap_or(12_000)
    });
    candidates.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("no port is free")
}
