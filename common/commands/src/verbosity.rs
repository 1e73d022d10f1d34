//! `verbosity [N]`: shows or changes `-v` of the running process.

use std::ffi::OsString;
use std::time::Duration;

use bytes::Bytes;
use flags::{Exit, FlagError, GoDuration};
use http::{Method, StatusCode};

use crate::admin::Admin;
use crate::{Program, not_asked, read};

const ABOUT: &str = "shows the log verbosity of the running program, or changes it.";
const PATH: &str = "/debug/flags/v";

flags::flags! {
    struct VerbosityFlags {
        "Verbosity" {
            /// How long the new verbosity applies, such as 10m; then the old one returns. Empty: until the program ends.
            time("for"): String = "" => time,
        }
    }
}

fn time(flag: &'static str, text: String) -> Result<String, FlagError> {
    let time = <GoDuration as flags::Value>::parse(&text).map(GoDuration::or_zero);
    if text.is_empty() || time.is_ok_and(|time| time > Duration::ZERO) {
        return Ok(text);
    }
    Err(FlagError::value(flag, text, "it must be a time above 0, such as 10m"))
}

pub(crate) async fn run(program: Program, line: Vec<OsString>) -> Result<Exit, Exit> {
    let (flags, admin, words): (VerbosityFlags, _, _) =
        read((program, "verbosity", ABOUT), (" [LEVEL]", 1), line)?;
    let admin = Admin::new(program, admin);
    let (method, path) = match (words.first(), flags.time.as_str()) {
        (None, "") => (Method::GET, PATH.to_owned()),
        (None, _) => return Err(not_asked("--for needs a level: verbosity LEVEL --for=10m")),
        (Some(level), _) if level.parse::<i32>().is_err() => {
            return Err(not_asked(&format!("{level:?} is no verbosity: give a number, such as 4")));
        }
        (Some(_), time) => (Method::PUT, format!("{PATH}?for={time}")),
    };
    let level = words.into_iter().next().unwrap_or_default();
    match admin.send(method, &path, Bytes::from(level)).await? {
        (StatusCode::OK, answer) => Ok(Exit::show(String::from_utf8_lossy(&answer))),
        (code, answer) => Err(admin.refused(PATH, code, &answer)),
    }
}
