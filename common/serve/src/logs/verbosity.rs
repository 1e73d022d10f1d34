//! Which events are shown: klog's verbosity mapped to `tracing` levels, for the process or for single files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};

/// Crates whose events follow `-v`. All others are libraries.
const WORKSPACE: [&str; 8] =
    ["cluster", "driver", "grpc", "mux", "net", "proxy_agent", "proxy_server", "serve"];

/// The verbosity of the process, `-v`, which may change while it runs. Clones share it.
#[derive(Clone, Debug)]
pub struct VerbosityLevel(Arc<AtomicI32>);

impl VerbosityLevel {
    /// A level of its own.
    pub fn new(level: i32) -> Self {
        Self(Arc::new(AtomicI32::new(level)))
    }

    /// The present level.
    pub fn get(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the level, and with it the cached result of each call site.
    pub fn set(&self, level: i32) {
        self.0.store(level, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// The filter. Its result for each call site is cached until the level changes, so a hidden event costs one load.
#[derive(Debug)]
pub(super) struct Verbosity {
    pub(super) level: VerbosityLevel,
    /// `--vmodule`: patterns, each with its level.
    pub(super) modules: Vec<(String, i32)>,
}

impl Verbosity {
    pub(super) fn shows(&self, metadata: &Metadata<'_>) -> bool {
        let level = self.level.get();
        let raised = || metadata.file().and_then(|file| self.module(file)).unwrap_or(level).max(level);
        let krate = metadata.target().split("::").next().unwrap_or_default();
        if let Some(from) = exact(krate) {
            return raised() >= from;
        }
        let filter = match krate {
            _ if WORKSPACE.contains(&krate) => workspace(raised()),
            // Any peer can cause its warnings, which name no peer; the end of the connection is logged.
            "h2" if libraries(level) == LevelFilter::WARN => LevelFilter::ERROR,
            _ => libraries(level),
        };
        *metadata.level() <= filter
    }

    /// The highest level that any call site may show.
    pub(super) fn most(&self) -> LevelFilter {
        let own = self.level.get();
        let level = self.modules.iter().map(|(_, level)| *level).fold(own, i32::max);
        // An event that is shown at `-v=0` may have any level down to INFO.
        workspace(level).max(libraries(own)).max(LevelFilter::INFO)
    }

    fn module(&self, file: &str) -> Option<i32> {
        let path = file.strip_suffix(".rs").unwrap_or(file);
        let matched = self.modules.iter().find(|(pattern, _)| {
            let name = if pattern.contains('/') { path } else { name(path) };
            matches(pattern, name)
        });
        matched.map(|(_, level)| *level)
    }
}

/// The `-v` that an event's target names: `v0` to `v9`.
fn exact(target: &str) -> Option<i32> {
    let digit = target.strip_prefix('v').filter(|digit| digit.len() == 1)?;
    digit.parse().ok()
}

fn workspace(level: i32) -> LevelFilter {
    match level {
        ..=0 => LevelFilter::WARN,
        1 | 2 => LevelFilter::INFO,
        3 | 4 => LevelFilter::DEBUG,
        5.. => LevelFilter::TRACE,
    }
}

fn libraries(level: i32) -> LevelFilter {
    match level {
        ..=5 => LevelFilter::WARN,
        6 | 7 => LevelFilter::INFO,
        8.. => LevelFilter::DEBUG,
    }
}

/// A file's name; a `mod` or `lib` has its folder's name.
fn name(path: &str) -> &str {
    let mut parts = Path::new(path).iter().rev().filter_map(|part| part.to_str());
    let last = parts.next().unwrap_or(path);
    match last {
        "mod" => parts.next().unwrap_or(last),
        "lib" => parts.find(|part| *part != "src").unwrap_or(last),
        _ => last,
    }
}

/// Whether the pattern matches the whole name; `*` matches any characters and `?` one.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pattern_rest = pattern.chars();
    match pattern_rest.next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = pattern_rest.as_str();
            let tails = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            tails.filter_map(|at| name.get(at..)).any(|tail| matches(rest, tail))
        }
        Some(wanted) => {
            let mut name_rest = name.chars();
            let fits = name_rest.next().is_some_and(|c| wanted == '?' || wanted == c);
            fits && matches(pattern_rest.as_str(), name_rest.as_str())
        }
    }
}

/// The severity, its letter in the prefix, and its name in JSON.
pub(super) fn severity(level: Level) -> (super::Severity, char, &'static str) {
    match level {
        Level::ERROR => (super::Severity::Error, 'E', "error"),
        Level::WARN => (super::Severity::Warning, 'W', "warn"),
        Level::INFO => (super::Severity::Info, 'I', "info"),
        Level::DEBUG => (super::Severity::Info, 'I', "debug"),
        Level::TRACE => (super::Severity::Info, 'I', "trace"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every crate of ours that logs must be in the list, or the rule for libraries would apply.
    #[test]
    fn all_crates_that_log_follow_the_verbosity() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a workspace");
        let folders = ["proxy-agent", "proxy-server"].map(|name| root.join(name));
        let common = std::fs::read_dir(root.join("common"))
            .expect("crates")
            .map(|entry| entry.expect("a crate").path());
        let logging: Vec<String> = common
            .chain(folders)
            .filter(|folder| {
                let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
                manifest.lines().any(|line| line.starts_with("tracing."))
            })
            .filter_map(|folder| Some(folder.file_name()?.to_str()?.replace('-', "_")))
            .collect();
        assert!(logging.len() >= 5, "{logging:?}");
        for name in logging {
            assert!(WORKSPACE.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn patterns() {
        for (pattern, name, verdict) in [
            ("owner", "owner", true),
            ("own*", "owner", true),
            ("*ner", "owner", true),
            ("o??er", "owner", true),
            ("o*n*r", "owner", true),
            ("own", "owner", false),
            ("", "owner", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), verdict, "{pattern} {name}");
        }
    }

    #[test]
    fn files_are_named_as_people_name_them() {
        assert_eq!(name("proxy-server/src/link/mod"), "link");
        assert_eq!(name("common/driver/src/lib"), "driver");
        assert_eq!(name("proxy-server/src/link/owner"), "owner");
    }

    #[test]
    fn a_module_raises_and_never_lowers() {
        let modules = vec![("owner".into(), 5), ("*/front/*".into(), 1), ("o*".into(), 9)];
        let verbosity = Verbosity { level: VerbosityLevel::new(2), modules };
        assert_eq!(verbosity.module("proxy-server/src/link/owner.rs"), Some(5));
        assert_eq!(verbosity.module("proxy-server/src/front/grpc/mod.rs"), Some(1));
        assert_eq!(verbosity.module("proxy-server/src/link/mod.rs"), None);
        assert_eq!(verbosity.most(), LevelFilter::TRACE);
    }
}
