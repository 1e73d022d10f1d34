//! `probe`: a dial through the tunnel, stage by stage.
//!
//! [`stages`] is a client of a frontend over any byte stream: the command runs it over a real frontend's socket, and the
//! server's `POST /probe` over a socket pair, for a dial through one agent.

pub(crate) mod command;
mod frontend_address;
mod tunnel;

use std::time::Duration;

pub use status::Stage;
use tokio::time::{Instant, timeout};

pub use self::frontend_address::{FrontendAddress, IdentityFlags, parse_frontend};
pub use self::tunnel::{Io, Protocol, Refused, Tunnel};

/// The time limit of a stage: longer than the server's own deadline of a dial.
pub const STAGE_TIMEOUT: Duration = Duration::from_secs(40);

/// What follows the dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDial {
    /// Nothing.
    Close,
    /// A ClientHello, and the first byte of the answer.
    Tls,
    /// A GET, and the first line of the answer.
    Http,
}

impl AfterDial {
    /// Its name in `POST /probe?then=`.
    pub const fn name(self) -> &'static str {
        match self {
            AfterDial::Close => "",
            AfterDial::Tls => "tls",
            AfterDial::Http => "http",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        [AfterDial::Close, AfterDial::Tls, AfterDial::Http].into_iter().find(|then| then.name() == name)
    }
}

/// Dials `target` over a connection to a frontend. `dialed` runs while the connection is open. Returns the stages; the last one
/// may have failed.
pub async fn stages<F: Future<Output = ()>>(
    io: Box<dyn Io>,
    protocol: Protocol,
    (target, then): (&str, AfterDial),
    dialed: impl FnOnce() -> F,
) -> Vec<Stage> {
    let began = Instant::now();
    let outcome = timeout(STAGE_TIMEOUT, Tunnel::dial(io, protocol, target)).await;
    let outcome = outcome.unwrap_or_else(|_| Err(Refused::agent("no answer from the frontend".to_owned())));
    let mut tunnel = match outcome {
        Ok(tunnel) => tunnel,
        Err(Refused { stage, text }) => return vec![stage_of(stage, began, Err(text))],
    };
    let mut stages = vec![stage_of("dial", began, Ok("the agent has connected to the target".to_owned()))];
    dialed().await;
    if then != AfterDial::Close {
        let began = Instant::now();
        let answer = timeout(STAGE_TIMEOUT, tunnel.first_byte(then, target)).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no byte within {} s", STAGE_TIMEOUT.as_secs())));
        stages.push(stage_of(then.name(), began, answer));
    }
    tunnel.close().await;
    stages
}

pub(crate) fn stage_of(name: &str, began: Instant, outcome: Result<String, String>) -> Stage {
    let ok = outcome.is_ok();
    let note = outcome.unwrap_or_else(|error| error);
    Stage { name: name.to_owned(), seconds: began.elapsed().as_secs_f64(), ok, note }
}
