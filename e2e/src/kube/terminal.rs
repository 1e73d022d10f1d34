//! A command on a terminal: kubectl as the foreground program of a pseudo-terminal.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::Kubectl;
use super::session::collect;
use crate::process::{bound, spawn};
use crate::wait::{DEADLINE, until};

/// A terminal and the command that runs on it; dropping the handle ends both.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keyboard: File,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts kubectl on a terminal with this number of rows and columns. Needs util-linux' `setsid`.
    pub fn start(kubectl: &Kubectl, args: &[&str], size: (u16, u16)) -> Result<Self> {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&keyboard)?;
        unlockpt(&keyboard)?;
        let name = ptsname(&keyboard, Vec::new())?;
        let screen = OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(name.to_bytes()))?;
        let keyboard = File::from(keyboard);
        set_size(&keyboard, size)?;
        // The terminal must be the controlling one, or kubectl gets no signal when its size changes.
        let mut command = bound(Path::new("setsid"));
        let recipe = kubectl.recipe(args);
        command.arg("--ctty").arg(recipe.program).args(recipe.args).envs(recipe.env);
        command.stdin(screen.try_clone()?).stdout(screen.try_clone()?).stderr(screen);
        let child = spawn(command).context("cannot start setsid")?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        collect(keyboard.try_clone()?, seen.clone());
        Ok(Self { child, keyboard, seen })
    }

    /// Sends input.
    pub fn send(&mut self, text: &str) -> Result<()> {
        Ok(self.keyboard.write_all(text.as_bytes())?)
    }

    /// Changes the window size.
    pub fn resize(&self, size: (u16, u16)) -> Result<()> {
        set_size(&self.keyboard, size)
    }

    /// The output so far.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock()).into_owned()
    }

    /// Waits until the output contains this text.
    pub async fn wait_for(&self, text: &str) -> Result<()> {
        let what = format!("{text:?} on the terminal");
        let found = until(&what, DEADLINE, || async { self.seen().contains(text).then_some(()) });
        found.await.with_context(|| format!("it showed {:?}", self.seen()))
    }

    /// Waits for the command's end.
    pub async fn exit(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        let ended = until("the end of a terminal's command", DEADLINE, || {
            let ended = child.try_wait().ok().flatten();
            async move { ended }
        });
        let ended = ended.await;
        ended.with_context(|| format!("it showed {:?}", self.seen()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The command has ended already, or ends here; an error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(terminal: &File, (rows, columns): (u16, u16)) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).context("cannot set the terminal's size")
}
