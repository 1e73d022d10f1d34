//! A fake kube-apiserver for tests: leases with versions and watches, token reviews, and faults on demand.
//!
//! It shares no code with the tested programs: objects are plain JSON values, and the rules (versions, conflicts,
//! preconditions, `410 Gone`, watches from a version on) are implemented again from the API's documentation. It has no
//! admission, no other kinds, and only one right: one accepted bearer token, or none required.

mod answer;
mod leases;
mod serve;
mod state;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use state::State;
pub use state::{Fault, Seen};

/// A running fake. Dropping it closes its port and all connections.
pub struct FakeApi {
    address: SocketAddr,
    tls: bool,
    state: Arc<Mutex<State>>,
    up: watch::Sender<bool>,
    task: AbortHandle,
}

impl FakeApi {
    /// Serves plain HTTP on a free port of this machine.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start() -> std::io::Result<Self> {
        Self::start_with(None).await
    }

    /// Serves TLS.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start_tls(config: Arc<ServerConfig>) -> std::io::Result<Self> {
        Self::start_with(Some(config)).await
    }

    async fn start_with(tls: Option<Arc<ServerConfig>>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let (up, is_up) = watch::channel(true);
        let is_tls = tls.is_some();
        let task = tokio::spawn(serve::run(listener, tls, Arc::clone(&state), is_up)).abort_handle();
        Ok(Self { address, tls: is_tls, state, up, task })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.address)
    }

    /// Writes a kubeconfig with that user section (YAML's flow style, like `{token: x}`) into a folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig(&self, folder: &Path, user: &str) -> std::io::Result<PathBuf> {
        let path = folder.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             contexts:\n- name: test\n  context: {{cluster: fake, user: me}}\n\
             clusters:\n- name: fake\n  cluster: {{server: \"{}\"}}\nusers:\n- name: me\n  user: {user}\n",
            self.url()
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// From now on only requests with this bearer token are served; others get 401.
    pub fn require_token(&self, token: &str) {
        self.state.lock().bearer = Some(token.to_owned());
    }

    /// Sets the review of a token: the `status` of a TokenReview. Tokens without one are not authenticated.
    pub fn set_review(&self, token: &str, status: Value) {
        self.state.lock().reviews.insert(token.to_owned(), status);
    }

    /// Removes the review of a token.
    pub fn revoke(&self, token: &str) {
        self.state.lock().reviews.remove(token);
    }

    /// From now on requests whose method and path contain `what` fail like this; the latest rule applies.
    pub fn set_fault(&self, what: &str, fault: Fault) {
        self.state.lock().faults.insert(0, (what.to_owned(), fault));
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Closes the port and every connection.
    pub fn down(&self) {
        self.up.send_replace(false);
    }

    /// Listens again.
    pub fn up(&self) {
        self.up.send_replace(true);
    }

    /// Closes the port and all connections, and listens again.
    ///
    /// # Panics
    /// The port does not open again.
    pub async fn restart(&self) {
        let refuses = |api: &Self| std::net::TcpStream::connect(api.address).is_err();
        self.down();
        assert!(self.wait(refuses).await, "the port stays open");
        self.up();
        assert!(self.wait(|api| !refuses(api)).await, "the port stays closed");
    }

    /// Ends every watch in order.
    pub fn end_watches(&self) {
        self.state.lock().watchers.clear();
    }

    /// Watches that are open now receive no further events, and stay open.
    pub fn silence_watches(&self) {
        let mut state = self.state.lock();
        let silenced = std::mem::take(&mut state.watchers);
        state.silenced.extend(silenced);
    }

    /// Discards history: watches from older versions get 410, and so do open watches.
    pub fn compact(&self) {
        self.state.lock().compact();
    }

    /// The leases of a namespace, by name.
    pub fn leases(&self, namespace: &str) -> Vec<Value> {
        self.state.lock().list(namespace)
    }

    /// One lease.
    pub fn lease(&self, namespace: &str, name: &str) -> Option<Value> {
        self.leases(namespace).into_iter().find(|lease| lease["metadata"]["name"] == name)
    }

    /// Creates or replaces a lease, whatever its version.
    #[expect(clippy::needless_pass_by_value, reason = "callers write json!")]
    pub fn put_lease(&self, namespace: &str, name: &str, labels: Value, spec: Value) {
        self.state.lock().put(namespace, name, &labels, &spec);
    }

    /// Deletes a lease.
    pub fn delete_lease(&self, namespace: &str, name: &str) {
        self.state.lock().delete(namespace, name);
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    /// The number of requests so far whose method and path contain `what`.
    pub fn count(&self, what: &str) -> usize {
        self.state.lock().seen.iter().filter(|seen| seen.line.contains(what)).count()
    }

    /// The largest number of concurrent requests, without watches.
    pub fn most_at_once(&self) -> usize {
        self.state.lock().most_at_once
    }

    /// Waits until `condition` holds; false after 20 s.
    pub async fn wait(&self, condition: impl Fn(&Self) -> bool) -> bool {
        let began = Instant::now();
        while !condition(self) {
            if began.elapsed() > Duration::from_secs(20) {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for FakeApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeApi").field("address", &self.address).finish_non_exhaustive()
    }
}
