//! One dial over at most two agent streams, as data: no socket, no clock, no waiting.
//!
//! The shell ([`super::Dialer`]) does what an [`Action`] says and hands back what happened as an [`Event`].
//!
//! ```text
//!              Chosen(link)            Admitted             Opened, Refused
//!  Choosing ----------------> Admitting --------> Sent ------------------------> Done
//!     |  ^                       |  |              | |                            ^
//!     |  |   Lost, Full (once)   |  |              | |                            |
//!     |  +-----------------------+--|--------------+ |  Lost, Full (second time)  |
//!     |      without that link      |                +----------------------------+
//!     |                             +---------------------------------------------+
//!     +-------------------- Chosen(nobody) ---------------------------------------+
//!                (Deadline and Cancelled lead to Done from everywhere)
//! ```
//!
//! Invariants: exactly one [`Action::Finish`]; at most two [`Action::Send`], never twice to one link; none after an
//! agent's answer. What a link that was given up still says is ignored here: closing a late success is its link's
//! affair.
//!
//! **A full link is tried elsewhere, once.** It refuses before anything is written, so the retry is as safe as
//! after a link that died unwritten, and it spends the same single retry: a server whose agents are all full must
//! say so soon instead of walking through thousands of them.

use super::reason::{DialFailure, RemoteError};
use crate::route::LinkId;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The strategies' choice, answering [`Action::Choose`].
    Chosen(Option<LinkId>),
    /// There is room for one more dial on this link, answering [`Action::Admit`].
    Admitted(LinkId),
    /// A link spoke, or its limits did.
    Answered(LinkId, Answer),
    /// The dial's time is over.
    Deadline,
    /// The frontend left.
    Cancelled,
}

/// What became of a dial on one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// DIAL_RSP with a connection.
    Opened,
    /// DIAL_RSP with an error. Final.
    Refused(RemoteError),
    /// DIAL_CLS from the agent. Final.
    Closed,
    /// The link ended before a DIAL_RSP.
    Lost,
    /// The link may not carry more. Nothing was written.
    Full,
}

/// What the shell does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask the strategies, without this link.
    Choose {
        /// The link that was tried already.
        exclude: Option<LinkId>,
    },
    /// Wait for room for a dial on this link.
    Admit(LinkId),
    /// Send the DIAL_REQ on this link.
    Send(LinkId),
    /// Nothing: the event was none of this state's.
    Wait,
    /// Tell the frontend. Said once.
    Finish(Result<LinkId, DialFailure>),
}

/// One dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialMachine {
    state: State,
    /// The first attempt, once it came to nothing, and what to report if no other can be made. The retry is spent.
    setback: Option<(LinkId, DialFailure)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Choosing,
    Admitting(LinkId),
    Sent(LinkId),
    Done,
}

impl DialMachine {
    /// A new dial and its first action.
    pub fn start() -> (Self, Action) {
        (Self { state: State::Choosing, setback: None }, Action::Choose { exclude: None })
    }

    /// Takes an event, says what to do. Events that do not belong to the state change nothing.
    pub fn handle(&mut self, event: Event) -> Action {
        match (self.state, event) {
            (State::Done, _) => Action::Wait,
            (_, Event::Cancelled) => self.finish(Err(DialFailure::Cancelled)),
            (State::Admitting(_), Event::Deadline) => self.finish(Err(DialFailure::SendFailed)),
            (_, Event::Deadline) => self.finish(Err(DialFailure::TimedOut)),
            (State::Choosing, Event::Chosen(choice)) => self.chosen(choice),
            (State::Admitting(link), Event::Admitted(on)) if on == link => {
                self.state = State::Sent(link);
                Action::Send(link)
            }
            (State::Admitting(link) | State::Sent(link), Event::Answered(on, Answer::Lost)) if on == link => {
                self.give_up(link, DialFailure::LinkLost)
            }
            (State::Admitting(link) | State::Sent(link), Event::Answered(on, Answer::Full)) if on == link => {
                self.give_up(link, DialFailure::Full)
            }
            (State::Sent(link), Event::Answered(on, Answer::Opened)) if on == link => self.finish(Ok(link)),
            (State::Sent(link), Event::Answered(on, Answer::Closed)) if on == link => {
                self.finish(Err(DialFailure::LinkLost))
            }
            (State::Sent(link), Event::Answered(on, Answer::Refused(error))) if on == link => {
                self.finish(Err(DialFailure::Refused(error)))
            }
            _ => Action::Wait,
        }
    }

    fn chosen(&mut self, choice: Option<LinkId>) -> Action {
        match (choice, self.setback.take()) {
            (Some(link), setback) if setback.as_ref().is_none_or(|(tried, _)| *tried != link) => {
                self.setback = setback;
                self.state = State::Admitting(link);
                Action::Admit(link)
            }
            (_, Some((_, failure))) => self.finish(Err(failure)),
            (_, None) => self.finish(Err(DialFailure::NoAgent)),
        }
    }

    fn give_up(&mut self, link: LinkId, failure: DialFailure) -> Action {
        if self.setback.is_some() {
            return self.finish(Err(failure));
        }
        self.setback = Some((link, failure));
        self.state = State::Choosing;
        Action::Choose { exclude: Some(link) }
    }

    fn finish(&mut self, outcome: Result<LinkId, DialFailure>) -> Action {
        self.state = State::Done;
        Action::Finish(outcome)
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
