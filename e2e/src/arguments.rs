//! Arguments of the measuring programs.

use std::path::PathBuf;

use clap::{Arg, ArgAction, value_parser};

/// `--NAME PATH`.
pub fn path(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("PATH").value_parser(value_parser!(PathBuf)).help(help)
}

/// `--NAME NUMBER`.
pub fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).default_value(default).value_parser(value_parser!(u64)).help(help)
}

/// `--NAME`.
pub fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}
