//! What both programs tell about themselves at `/statusz`.
//!
//! [`Facts`] holds what does not depend on the program; each program adds its peers and connections in its boot. Nothing
//! here runs on the data path.

mod connections;
mod journal;

use std::fmt::Display;
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flags::{Bind, BindHost};
use net::tls::CertificateFacts;
use parking_lot::Mutex;
use status::{Build, Certificate, Flag, Listener, Query, Status, VERSION};
use time::OffsetDateTime;
use time::format_description::well_known::Iso8601;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use connections::connections;
pub use journal::Journal;

use crate::certificates::CertificateSide;
use crate::http::admin::with_status;
use crate::http::health::Condition;
use crate::http::{Routes, ServerHandle, serve, with_verbosity};
use crate::logs::{Options, VerbosityLevel};

/// A reader that takes nothing for this long stalls.
const STALL: Duration = Duration::from_secs(1);

/// The program, its flags, sockets and certificates. Clones share them.
#[derive(Clone)]
pub struct Facts(Arc<Inner>);

/// Reads what the document shows of one part now.
type Read<T> = Box<dyn Fn() -> T + Send + Sync>;

struct Inner {
    build: Build,
    id: String,
    flags: Vec<Flag>,
    verbosity: VerbosityLevel,
    default_verbosity: i32,
    started: SystemTime,
    /// Sockets that are bound, or will be.
    sockets: Mutex<Vec<Read<Option<Listener>>>>,
    /// The certificates in use.
    certificates: Mutex<Vec<Read<Vec<Certificate>>>>,
}

impl Facts {
    /// The process starts now. `flags` are those that differ from their defaults; no flag of the programs holds a secret,
    /// because all credentials are in files.
    pub fn new(
        program: &'static str,
        version: &'static str,
        id: &str,
        flags: &[(&'static str, String)],
        verbosity: VerbosityLevel,
    ) -> Self {
        let build = Build { program: program.into(), version: version.into(), fips: net::tls::FIPS };
        let flag =
            |(name, value): &(&'static str, String)| Flag { name: (*name).into(), value: value.clone() };
        let flags = flags.iter().filter(|(name, _)| *name != "v").map(flag).collect();
        Self(Arc::new(Inner {
            build,
            id: id.into(),
            flags,
            verbosity,
            default_verbosity: Options::default().verbosity,
            started: now(),
            sockets: Mutex::default(),
            certificates: Mutex::default(),
        }))
    }

    /// A socket is bound.
    pub fn listening(&self, name: &str, address: impl Display, protocol: &str) {
        let listener =
            Listener { name: name.into(), address: address.to_string(), protocol: protocol.into() };
        self.0.sockets.lock().push(Box::new(move || Some(listener.clone())));
    }

    /// Serves the health port and the admin port, which also shows the verbosity and, possibly on any address, the status that
    /// `build` returns (see [`with_status`]). They may be bound later.
    pub fn serve_ports<F: Future<Output = Status> + Send + 'static>(
        &self,
        runtime: &Handle,
        [health, (host, port, admin)]: [(&BindHost, u16, Routes); 2],
        on_any_address: bool,
        readiness: impl Fn() -> Vec<Condition> + Send + Sync + 'static,
        build: impl Fn(Query) -> F + Send + Sync + 'static,
    ) -> Vec<ServerHandle> {
        let admin = with_status(admin, (host, on_any_address), readiness, build);
        let admin = (host, port, with_verbosity(admin, self.0.verbosity.clone()));
        let serve = |(name, (host, port, routes)): (&'static str, (&BindHost, u16, _))| {
            let port = serve(runtime, name, Bind { host: host.clone(), port }, routes);
            let address = port.address();
            self.0.sockets.lock().push(Box::new(move || {
                let address = (*address.borrow())?.to_string();
                Some(Listener { name: name.into(), address, protocol: "http".into() })
            }));
            port
        };
        [("health", health), ("admin", admin)].map(serve).into()
    }

    /// The certificates of a side, of which `in_use` returns the present ones. The result is for the reason why their
    /// changed files cannot be used; empty if they can.
    pub(crate) fn certificates(
        &self,
        side: CertificateSide,
        in_use: impl Fn() -> Vec<CertificateFacts> + Send + Sync + 'static,
    ) -> Arc<Mutex<String>> {
        let refused = Arc::<Mutex<String>>::default();
        let why = Arc::clone(&refused);
        let certificate = move |facts: CertificateFacts| {
            let (role, flag) = match facts.presented {
                true => ("presented", side.cert),
                false => ("trusted", side.authorities),
            };
            Certificate {
                side: side.name.to_owned(),
                role: role.to_owned(),
                source: format!("--{flag} {}", facts.path.display()),
                subject: facts.subject,
                issuer: facts.issuer,
                not_before: unix(facts.validity.not_before),
                not_after: unix(facts.validity.not_after),
                change_refused: why.lock().clone(),
            }
        };
        let all = move || in_use().into_iter().map(&certificate).collect();
        self.0.certificates.lock().push(Box::new(all));
        refused
    }

    /// The client certificate of the kubeconfig, which `expires` at a Unix time in seconds.
    pub(crate) fn kubeconfig_certificate(&self, expires: impl Fn() -> Option<i64> + Send + Sync + 'static) {
        let (side, source) = ("kubeconfig", "--kubeconfig");
        let one = move |at| {
            let (side, source, role) = (side.into(), source.into(), "presented".into());
            Certificate { side, role, source, not_after: unix(at), ..Certificate::default() }
        };
        self.0.certificates.lock().push(Box::new(move || expires().map(one).into_iter().collect()));
    }

    /// A document with these facts, and nothing else.
    pub fn document(&self) -> Status {
        let Inner { build, id, flags, verbosity, default_verbosity, started, sockets, certificates } =
            &*self.0;
        let verbosity = Some(verbosity.get()).filter(|level| level != default_verbosity);
        let verbosity = verbosity.map(|level| Flag { name: "v".into(), value: level.to_string() });
        Status {
            version: VERSION,
            build: build.clone(),
            id: id.clone(),
            flags: flags.iter().cloned().chain(verbosity).collect(),
            started: rfc3339(*started),
            now: rfc3339(now()),
            certificates: certificates.lock().iter().flat_map(|read| read()).collect(),
            listeners: sockets.lock().iter().filter_map(|read| read()).collect(),
            ..Status::default()
        }
    }
}

/// The wall clock.
#[expect(clippy::disallowed_methods, reason = "operators read the status beside a clock")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// RFC 3339 in UTC with milliseconds: texts of this form are in the order of their times. Takes a third of the time that
/// a format description takes.
pub fn rfc3339(at: SystemTime) -> String {
    const MILLISECONDS: TimePrecision = TimePrecision::Second { decimal_digits: NonZero::new(3) };
    const FORMAT: EncodedConfig = Config::DEFAULT.set_time_precision(MILLISECONDS).encode();
    // Fails only for years before 0.
    OffsetDateTime::from(at).format(&Iso8601::<FORMAT>).unwrap_or_default()
}

/// A Unix time in seconds; the epoch for an earlier one.
pub fn unix(seconds: i64) -> String {
    rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

/// The time of `moment`, if it is `wall` now.
pub fn ago(wall: SystemTime, now: Instant, moment: Instant) -> String {
    rfc3339(wall - now.saturating_duration_since(moment))
}

/// A duration in seconds, to the microsecond.
pub fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

/// The seconds of a stall; a shorter pause of a reader is none.
pub fn stall(waits: Option<Duration>) -> Option<f64> {
    waits.filter(|waits| *waits >= STALL).map(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_facts_of_the_process() {
        let level = VerbosityLevel::new(4);
        let flags = [("mode", "grpc".to_owned()), ("v", "7".to_owned())];
        let facts = Facts::new("proxy-server", "1.2.3", "one", &flags, level.clone());
        facts.listening("agents", "127.0.0.1:8091", "grpc");
        let document = facts.document();
        assert_eq!((document.build.program.as_str(), document.id.as_str()), ("proxy-server", "one"));
        assert_eq!(document.flags, [Flag { name: "mode".into(), value: "grpc".into() }]);
        assert_eq!(document.listeners[0].address, "127.0.0.1:8091");
        assert!(document.started <= document.now);
        level.set(2);
        assert_eq!(facts.document().flags[1], Flag { name: "v".into(), value: "2".into() });
    }

    #[test]
    fn times_are_in_utc_with_milliseconds() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(rfc3339(at), "1970-01-01T00:00:01.500Z");
        assert_eq!(unix(1_795_278_845), "2026-11-21T16:34:05.000Z");
    }
}
