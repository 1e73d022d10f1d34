//! An interactive command: kubectl with pipes for its streams.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ExitStatus};
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use super::Kubectl;
use crate::process::spawn;
use crate::wait::{DEADLINE, until};

/// A running command; dropping the handle ends it.
#[derive(Debug)]
pub struct Session {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Session {
    /// Starts kubectl with these arguments.
    pub fn start(kubectl: &Kubectl, args: &[&str]) -> Result<Self> {
        let mut child = spawn(kubectl.command(args))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        if let Some(stream) = child.stdout.take() {
            collect(stream, seen.clone());
        }
        if let Some(stream) = child.stderr.take() {
            collect(stream, seen.clone());
        }
        Self::over(args, child, seen)
    }

    /// Starts kubectl and never reads its output.
    pub fn start_unread(kubectl: &Kubectl, args: &[&str]) -> Result<Self> {
        Self::over(args, spawn(kubectl.command(args))?, Arc::default())
    }

    fn over(args: &[&str], mut child: Child, seen: Arc<Mutex<Vec<u8>>>) -> Result<Self> {
        let stdin = child.stdin.take();
        Ok(Self { name: format!("kubectl {}", args.join(" ")), child, stdin, seen })
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Types into it.
    pub fn send(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its input is closed")?;
        stdin.write_all(text.as_bytes())?;
        Ok(stdin.flush()?)
    }

    /// Closes its input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Its output so far, both streams together.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock()).into_owned()
    }

    /// Waits until its output contains this text.
    pub async fn wait_for(&self, text: &str) -> Result<()> {
        let what = format!("{text:?} from {}", self.name);
        let found = until(&what, DEADLINE, || async { self.seen().contains(text).then_some(()) });
        found.await.with_context(|| format!("it wrote {:?}", self.seen()))
    }

    /// Waits for its end.
    pub async fn exit(&mut self) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        let child = &mut self.child;
        let found = until(&what, DEADLINE, || {
            let ended = child.try_wait().ok().flatten();
            async move { ended }
        });
        let ended = found.await;
        ended.with_context(|| format!("it wrote {:?}", self.seen()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The command has ended already, or ends here; an error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Collects output on a separate thread until the stream ends; the end of a terminal is an error.
pub(super) fn collect(mut stream: impl Read + Send + 'static, seen: Arc<Mutex<Vec<u8>>>) {
    std::thread::spawn(move || {
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            seen.lock().extend_from_slice(chunk.get(..count).unwrap_or_default());
        }
    });
}
