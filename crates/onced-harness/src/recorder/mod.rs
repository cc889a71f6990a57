//! The recorder: starts, stops and restarts the server, and is the handle by which a test scripts and reads it.

mod control;
mod gate;
mod handle;
mod log;
mod reply;
mod script;
mod serve;
mod socket;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;

pub use self::log::{Call, Entry, Log, TimedOut};
pub use self::reply::{Delivery, Moment, Reply};
pub use self::script::{Rule, When};

use self::handle::Shared;
use self::serve::Server;

/// What a call does in the world, run once the script lets the call take effect.
///
/// It may give the reply; with `None` the scripted one is used. A panic is answered with 500 and counts as no effect.
pub type Effect = Arc<dyn Fn(Call) -> BoxFuture<'static, Option<Reply>> + Send + Sync>;

/// What `GET /_recorder/lookup` tells about effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// Each effect can be seen as soon as it happened.
    #[default]
    Truthful,
    /// Every look-up says "none", as a provider does whose index lags behind.
    Hidden,
}

/// How a recorder is started.
#[derive(Clone)]
pub struct RecorderOptions {
    listen: SocketAddr,
    deduplicates: bool,
    effect: Option<Effect>,
    script: Vec<Rule>,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self { listen, deduplicates: false, effect: None, script: Vec::new() }
    }
}

impl RecorderOptions {
    /// Listens here instead of on a free port of 127.0.0.1.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Honours the `Idempotency-Key` header: the first effect's answer comes again, and there is no second effect.
    #[must_use]
    pub fn deduplicate(mut self) -> Self {
        self.deduplicates = true;
        self
    }

    /// Starts with these rules; see [`Recorder::script`].
    #[must_use]
    pub fn script(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.script = rules.into_iter().collect();
        self
    }

    /// Runs this as the effect of each call that takes effect; see [`Effect`].
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = Some(effect);
        self
    }

    /// [`RecorderOptions::effect`] for an async closure.
    #[must_use]
    pub fn effect_fn<F, Fut>(self, effect: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Reply>> + Send + 'static,
    {
        self.effect(Arc::new(move |call| effect(call).boxed()))
    }
}

impl fmt::Debug for RecorderOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecorderOptions")
            .field("listen", &self.listen)
            .field("deduplicates", &self.deduplicates)
            .field("script", &self.script)
            .finish_non_exhaustive()
    }
}

/// A scripted HTTP/1.1 downstream that counts calls and effects.
///
/// A call goes on when its client hangs up, as in a real service; it ends when the recorder is stopped or dropped.
/// Everything under `/_recorder/` is for control and is not recorded.
pub struct Recorder {
    shared: Arc<Shared>,
    address: SocketAddr,
    server: Mutex<Option<Server>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Binds the address and serves in the background.
    ///
    /// # Errors
    /// Where the address cannot be bound.
    pub async fn start(options: RecorderOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(options.script, options.effect, options.deduplicates));
        let server = Mutex::new(Some(Server::spawn(listener, Arc::clone(&shared))));
        Ok(Self { shared, address, server })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// `http://ADDRESS`, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops dead: connections break, running calls end where they are, and new connections are refused.
    ///
    /// The log stays readable.
    pub async fn stop(&self) {
        let server = self.take_server();
        if let Some(server) = server {
            server.stop().await;
        }
        self.shared.end_calls().await;
    }

    /// Stops, then listens on the same address again. Log, script and remembered answers are kept.
    ///
    /// # Errors
    /// Where the address was taken in between.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop().await;
        let listener = TcpListener::bind(self.address).await?;
        let server = Server::spawn(listener, Arc::clone(&self.shared));
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    /// Replaces the script. The first rule that matches a call decides; without one the call gets [`Reply::ok`].
    ///
    /// Calls that have arrived keep the rule that they got.
    pub fn script(&self, rules: impl IntoIterator<Item = Rule>) {
        self.shared.script.replace(rules.into_iter().collect());
    }

    /// Makes each call from now on wait before its effect, until [`Recorder::release`].
    pub fn hold(&self) {
        self.shared.gate.close();
    }

    /// Lets go every call that has arrived, and ends [`Recorder::hold`].
    pub fn release(&self) {
        self.shared.gate.release_all();
    }

    /// Lets go one call; the others stay held.
    pub fn release_call(&self, seq: u64) {
        self.shared.gate.release(seq);
    }

    /// Sets what look-ups tell from now on.
    pub fn set_lookup(&self, lookup: Lookup) {
        self.shared.set_lookup(lookup);
    }

    /// The calls so far, in the order in which they arrived.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.log().calls()
    }

    /// How many calls arrived.
    #[must_use]
    pub fn count(&self) -> usize {
        self.log().count()
    }

    /// How many calls took effect.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.log().effects()
    }

    /// How many calls of each key took effect; a key without an effect is listed with 0.
    #[must_use]
    pub fn effects_by_key(&self) -> BTreeMap<String, usize> {
        self.log().effects_by_key()
    }

    /// The calls of one key.
    #[must_use]
    pub fn calls_for(&self, key: &str) -> Vec<Call> {
        self.log().calls_for(key)
    }

    /// A snapshot of the whole log.
    #[must_use]
    pub fn log(&self) -> Log {
        self.shared.book.snapshot()
    }

    /// Waits until at least `count` calls have arrived.
    ///
    /// # Errors
    /// After `limit`, with the log as it was then.
    pub async fn wait_for_calls(&self, count: usize, limit: Duration) -> Result<Vec<Call>, TimedOut> {
        let log = self.shared.book.wait_until(|log| log.count() >= count, limit).await?;
        Ok(log.calls())
    }

    /// Waits until at least `count` calls are held at this moment.
    ///
    /// # Errors
    /// After `limit`, with the log as it was then.
    pub async fn wait_for_held(&self, count: usize, limit: Duration) -> Result<(), TimedOut> {
        self.wait_until(|log| log.held() >= count, limit).await
    }

    /// Waits until the log is as `wanted`; it is asked now and after each change.
    ///
    /// # Errors
    /// After `limit`, with the log as it was then.
    pub async fn wait_until(&self, wanted: impl FnMut(&Log) -> bool, limit: Duration) -> Result<(), TimedOut> {
        self.shared.book.wait_until(wanted, limit).await.map(drop)
    }

    fn take_server(&self) -> Option<Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(server) = self.take_server() {
            server.abort();
        }
        self.shared.abort_calls();
    }
}
