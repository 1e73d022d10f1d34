//! `konnectivity-check compare`: dials the same targets through an existing server and through a new one, and says in one
//! table whether kube-apiserver may switch. docs/migrating.md describes it.
//!
//! It connects to two frontends as kube-apiserver does. Endpoints get a TLS ClientHello or a GET if this is asked for, and nothing
//! else. It neither asks nor changes the Kubernetes API.

mod dial;
mod verdict;

use std::ffi::OsString;
use std::process::ExitCode;

use commands::probe::{FrontendAddress, IdentityFlags, parse_frontend};
use commands::table::Table;
use flags::{Exit, FlagError, FlagSet};
use net::host_port::host_port;

use self::dial::{EndpointRequest, dial};
use self::verdict::{Side, verdict};

/// The first word of the command line.
pub(crate) const COMMAND: &str = "compare";

const ABOUT: &str = "dials each target through two frontends as kube-apiserver does, compares outcomes, answers and times, and \
    changes nothing. Exit status 0: kube-apiserver may switch to the new server; 1: it should not; 2: wrong command line.";

flags::flags! {
    struct CompareFlags {
        "Servers" {
            /// Frontend of the existing server, as unix:PATH or tcp:HOST:PORT, with ,http-connect behind it for HTTP CONNECT
            /// instead of gRPC. A port needs a client certificate.
            old: Option<FrontendAddress> = "" => frontend,
            /// Frontend of the new server, in the same form.
            new: Option<FrontendAddress> = "" => frontend,
        }
        "What is compared" {
            /// Dials of each target through each server.
            count: usize = "5" => flags::above_zero,
            /// Do a TLS handshake, and compare the endpoint's certificates.
            tls: bool = "false",
            /// Send an HTTP GET, within TLS with --tls, and compare the status and the body.
            http: bool = "false",
            /// Path of the GET.
            path: String = "/" => path,
        }
    }
}

fn frontend(flag: &'static str, text: String) -> Result<Option<FrontendAddress>, FlagError> {
    if text.is_empty() {
        return Ok(None);
    }
    let (address, protocol) = text.rsplit_once(',').unwrap_or((&text, "grpc"));
    let address = address.strip_prefix("uds:").map_or(address.to_owned(), |path| format!("unix:{path}"));
    let want = "it must be unix:PATH or tcp:HOST:PORT, with ,grpc or ,http-connect behind it";
    parse_frontend(&format!("{protocol}+{address}"))
        .map(Some)
        .ok_or_else(|| FlagError::value(flag, text, want))
}

fn path(flag: &'static str, text: String) -> Result<String, FlagError> {
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text);
    }
    Err(FlagError::value(
        flag,
        text,
        "it must begin with / and contain neither spaces nor control characters",
    ))
}

/// Runs the comparison. `line` starts with the command's name.
pub(crate) fn main(line: impl Iterator<Item = OsString>) -> ExitCode {
    run(line).unwrap_or_else(|exit| exit).leave()
}

fn run(line: impl Iterator<Item = OsString>) -> Result<Exit, Exit> {
    let plan = Plan::parse(line).map_err(commands::wrong)?;
    let (safe, report) = commands::block_on(plan.compare())?;
    Ok(Exit { code: u8::from(!safe), ..Exit::show(report) })
}

/// A command line that is complete.
struct Plan {
    old: FrontendAddress,
    new: FrontendAddress,
    identity: IdentityFlags,
    count: usize,
    ask: EndpointRequest,
    targets: Vec<String>,
}

impl Plan {
    fn parse(line: impl Iterator<Item = OsString>) -> Result<Self, Exit> {
        let name = format!("{} {COMMAND}", crate::NAME);
        let set = FlagSet::new(name, env!("CARGO_PKG_VERSION"), ABOUT).usage(" HOST:PORT...");
        let given = set.group::<(CompareFlags, IdentityFlags)>().read(line)?;
        let (flags, identity): (CompareFlags, IdentityFlags) = given.group()?;
        let CompareFlags { old, new, count, tls, http, path } = flags;
        let missing = |flag| Exit::refuse(&format!("--{flag} is missing: give the frontend of that server"));
        let targets: Vec<String> = given.positional.into_iter().map(|positional| positional.word).collect();
        if targets.is_empty() {
            return Err(Exit::refuse("no target: give HOST:PORT, such as a kubelet's"));
        }
        if let Some(wrong) = targets.iter().find(|target| host_port(target).is_none()) {
            return Err(Exit::refuse(&format!("{wrong:?} is no target: give HOST:PORT")));
        }
        let ask = EndpointRequest { tls, get: http.then_some(path) };
        let (old, new) = (old.ok_or_else(|| missing("old"))?, new.ok_or_else(|| missing("new"))?);
        Ok(Self { old, new, identity, count, ask, targets })
    }

    /// Whether kube-apiserver may switch, and the report.
    async fn compare(&self) -> (bool, String) {
        let mut table =
            Table::new(&["TARGET", "OLD", "NEW", "OLD MEDIAN", "NEW MEDIAN", "ANSWER", "VERDICT"]);
        let (mut reached, mut wrong) = (0, 0);
        for target in &self.targets {
            let (old, new) = self.sides(target).await;
            let (safe, text) = verdict(&old, &new);
            reached += usize::from(old.reached() > 0 && new.reached() > 0);
            wrong += usize::from(!safe);
            let verdict = if safe { text } else { format!("DIFFERS: {text}") };
            let cells: [String; 7] = [
                target.clone(),
                old.outcome(),
                new.outcome(),
                old.time(),
                new.time(),
                old.answer(&new),
                verdict,
            ];
            table.row(cells.each_ref().map(|cell| cell as &dyn std::fmt::Display));
        }
        let all = self.targets.len();
        let last = match (wrong, reached) {
            (0, 0) => "NOT SAFE to switch: no target was reached through both servers\n".to_owned(),
            (0, _) => {
                format!("safe to switch: {all} of {all} targets behave the same through {}\n", self.new)
            }
            _ => format!(
                "NOT SAFE to switch: {wrong} of {all} targets behave differently through {}\n",
                self.new
            ),
        };
        (wrong == 0 && reached > 0, format!("{table}\n{last}"))
    }

    /// Dials through both servers in turn. A failure that both share is not repeated, because it may take as long as a
    /// time-out.
    async fn sides(&self, target: &str) -> (Side, Side) {
        let (mut old, mut new) = (Side::default(), Side::default());
        for round in 0..self.count {
            // Each server is the first one in every second round.
            let mut sides = [(&self.old, &mut old), (&self.new, &mut new)];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (place, side) in sides {
                side.add(dial(place, &self.identity, target, &self.ask).await);
            }
            if old.reached() == 0 && new.reached() == 0 {
                break;
            }
        }
        (old, new)
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    fn parse(words: &[&str]) -> Result<Plan, String> {
        let line = ["compare"].iter().chain(words).map(Into::into);
        Plan::parse(line).map_err(|exit| exit.stderr)
    }

    #[test]
    fn frontends_are_sockets_or_ports_with_a_protocol() {
        for (text, shown) in [
            ("uds:/run/k.sock", "grpc+unix:/run/k.sock"),
            ("unix:/run/k.sock", "grpc+unix:/run/k.sock"),
            ("uds:/run/k.sock,http-connect", "http-connect+unix:/run/k.sock"),
            ("tcp:[::1]:8090,http-connect", "http-connect+tcp:[::1]:8090"),
        ] {
            let plan = parse(&[&format!("--old={text}"), "--new=uds:/n", "a:1", "[::1]:2"]).unwrap();
            assert_eq!((plan.old.to_string().as_str(), plan.targets.len()), (shown, 2));
        }
    }

    #[test]
    fn incomplete_lines_are_refused_by_name() {
        for (words, line) in [
            (&["--new=uds:/n", "a:1"][..], "--old is missing"),
            (&["--old=uds:/o", "a:1"], "--new is missing"),
            (&["--old=uds:/o", "--new=uds:/n"], "no target"),
            (&["--old=uds:/o", "--new=uds:/n", "a"], "\"a\" is no target"),
            (&["--old=/o", "--new=uds:/n", "a:1"], "--old=/o"),
            (&["--old=uds:/o,quic", "--new=uds:/n", "a:1"], "--old=uds:/o,quic"),
            (&["--old=uds:/o", "--new=uds:/n", "--count=0", "a:1"], "--count=0"),
            (&["--old=uds:/o", "--new=uds:/n", "--path=x", "a:1"], "--path=x"),
        ] {
            let said = parse(words).err().unwrap();
            assert!(said.contains(line) && said.lines().count() == 1, "{words:?}: {said}");
        }
    }
}
