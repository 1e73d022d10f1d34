//! Command lines of the Go programs' operators.
//!
//! This crate has pflag's syntax on top of clap ([`FlagSet`]), the value formats of Go's standard library ([`go`],
//! [`GoDuration`]), the flags of both binaries ([`log`], [`FlowOptions`], [`ProfilingFlags`]), their common errors
//! ([`FlagError`]), and the ends of a process by its command line ([`Exit`]).
//!
//! It knows no flag of one binary only, reads no environment, opens no file (it only checks for existence), and neither
//! prints nor exits by itself.
//!
//! A flag stands in one row of a table ([`flags!`]): its name, default, help, format, check and the field that it sets.
//! clap holds the table and parses; [`FlagSet`] is pflag's syntax, help and errors around it. No flag is looked up by
//! name afterwards, so a misspelled name cannot compile.
//!
//! Sources: pflag 1.0.10, cobra 1.10, klog 2.140 and Go 1.26, read and tested.

mod address;
mod announce;
mod duration;
mod exit;
mod flag;
mod flag_error;
mod flow;
pub mod go;
mod help;
pub mod log;
mod profiling;
mod record;
mod set;
mod suggest;
mod syntax;
#[cfg(test)]
mod tests;
mod value;

pub use address::{
    Bind, BindHost, above_zero, bind_host, existing_file, header_text, identity, keepalive_timeout,
    optional_duration, pair, port, unresponsive_timeout,
};
pub use duration::GoDuration;
pub use exit::Exit;
pub use flag::{Flag, Group, any, dashed, one_of};
pub use flag_error::FlagError;
pub use flow::FlowOptions;
pub use log::{LogFormat, LogOptions, Severity};
pub use profiling::ProfilingFlags;
pub use record::RecordOptions;
pub use set::{FlagSet, Given, without_effect};
pub use suggest::closest;
pub use syntax::Positional;
pub use value::{Repeated, Value};
