//! Command lines as operators of the Go peers write them.
//!
//! What this crate is for: the syntax of pflag ([`FlagSet`]), the spellings of values that Go's standard
//! library reads ([`go`]), the flags that both binaries carry ([`log`], [`FlowFlags`],
//! [`ProfilingFlags`]), the refusals both share
//! ([`Refusal`]), and how a command line ends a process ([`Exit`]).
//!
//! What it never does: it knows no flag of one binary alone, reads no environment, opens no file beyond
//! asking whether it exists, and neither prints nor exits on its own account.
//!
//! A binary keeps a struct of plain fields holding the defaults, lends each field to a [`FlagSet`], and gets
//! them back filled in. No flag is looked up by its name afterwards, so a misspelt name cannot compile.
//!
//! Sources of facts: pflag 1.0.10, cobra 1.10, klog 2.140 and Go 1.26, read and probed.

mod announce;
mod exit;
mod flow;
pub mod go;
mod help;
pub mod log;
mod period;
mod places;
mod profiling;
mod refusal;
mod set;
mod syntax;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod value;

pub use announce::announce;
pub use exit::Exit;
pub use flow::{FlowFlags, FlowOptions};
pub use go::duration::GoDuration;
pub use log::{LogFlags, LogFormat, LogOptions, Severity};
pub use period::{period, unresponsive_timeout};
pub use places::{Bind, BindHost, existing_file, header_text, identity, pair, port};
pub use profiling::ProfilingFlags;
pub use refusal::Refusal;
pub use set::{Flag, FlagSet, Given};
pub use syntax::SyntaxError;
pub use value::{List, Unfit, Value};
