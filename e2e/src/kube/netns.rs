//! A network namespace for the tests: a loopback interface with one more address, and nothing else.
//!
//! kube-apiserver refuses to proxy to nodes and pods with loopback addresses, and no packet of a test may leave the machine.
//! The namespace ensures both: [`NODE_ADDRESS`] is not a loopback address, and there is no route out.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The address of the node and its pods inside the namespace.
pub const NODE_ADDRESS: &str = "10.77.0.1";

/// Set in processes inside the namespace.
const INSIDE: &str = "KONNECTIVITY_NETNS";

/// The two ways to create a namespace: with the privilege, and without it.
const UNSHARE_OPTIONS: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];

/// Whether this process runs in the namespace.
pub fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs this program again, with its arguments, inside a namespace; does nothing if it is already inside. Must be called first
/// in `main`. Needs util-linux' `unshare` and iproute2's `ip`.
pub fn enter() -> Result<()> {
    if inside() {
        return Ok(());
    }
    let prepare = format!("ip link set lo up && ip address add {NODE_ADDRESS}/32 dev lo");
    let exe = std::env::current_exe().context("the current executable has no path")?;
    for options in UNSHARE_OPTIONS {
        let mut trial = Command::new("unshare");
        trial.args(options).args(["sh", "-c", &prepare]).stdout(Stdio::null()).stderr(Stdio::null());
        if !trial.status().is_ok_and(|status| status.success()) {
            continue;
        }
        let mut real = Command::new("unshare");
        real.args(options).args(["sh", "-c", &format!("{prepare} && exec \"$@\""), "sh"]).arg(exe);
        real.args(std::env::args_os().skip(1)).env(INSIDE, "1");
        bail!("cannot become `unshare`: {}", real.exec());
    }
    bail!("this machine makes no network namespace: `unshare --net sh -c '{prepare}'` fails")
}
