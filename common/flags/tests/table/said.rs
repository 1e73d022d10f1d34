//! The output of a built program, by the name under which it is started.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts `program` under `name`. Returns its exit code and its whole output.
fn said_as(program: &OsStr, name: &str, words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(program).arg0(name).args(words).output().expect("the program runs");
    let (stdout, stderr) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    (output.status.code(), stdout.expect("text") + &stderr.expect("text"))
}

/// Asserts that the built `program` behaves as itself under its own name, and as konnectivity-check under that name:
/// `helm test` starts a link to it in the image.
///
/// # Panics
/// If it does not, or cannot be started.
pub fn is_the_check_by_name(program: impl AsRef<OsStr>, own: &str, version: &str) {
    let said = |name: &str, words: &[&str]| said_as(program.as_ref(), name, words);
    let of = |name: &str| (Some(0), format!("{name} {version}\n"));
    assert_eq!(said("/konnectivity-check", &["--version"]), of("konnectivity-check"));
    assert_eq!(said(&format!("/usr/bin/{own}"), &["--version"]), of(own));
    let refused = said("konnectivity-check", &["--of=agent", "--namespace=kube-system"]);
    let text = "--selector must not be empty: give labels that choose the pods\n";
    assert_eq!(refused, (Some(1), text.to_owned()));
}
