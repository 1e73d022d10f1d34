//! Runs the corpus and random bytes through every target, on any toolchain.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use fuzz::TARGETS;
use proptest::collection::vec;
use proptest::prelude::*;

type Corpus = Vec<(PathBuf, Vec<u8>)>;

/// The corpus of each target.
static CORPORA: LazyLock<[Corpus; TARGETS.len()]> = LazyLock::new(|| TARGETS.map(|(name, _)| corpus(name)));

/// The seeds of a target, and inputs that once revealed a fault; sorted, because proptest selects them by their position.
fn corpus(name: &str) -> Corpus {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort_unstable();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("a readable seed"))).collect()
}

#[test]
fn every_seed_passes() {
    for ((name, target), seeds) in TARGETS.iter().zip(&*CORPORA) {
        assert!(seeds.len() >= 4, "{name}: {} seeds", seeds.len());
        for (path, seed) in seeds {
            println!("{}", path.display());
            target(seed);
        }
    }
}

/// A folder without a target would never be used, and a target without a program never fuzzed.
#[test]
fn every_target_has_its_folder_and_its_program() {
    let mut names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, suffix) in [("corpus", ""), ("libfuzzer/targets", ".rs")] {
        let entries = std::fs::read_dir(here.join(folder)).expect("a folder");
        let mut found: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        found.sort_unstable();
        assert_eq!(found, names.iter().map(|name| format!("{name}{suffix}")).collect::<Vec<_>>(), "{folder}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn random_bytes_pass(bytes in vec(any::<u8>(), 0..400)) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }

    /// A seed with some bytes changed, inserted or cut off.
    #[test]
    fn damaged_seeds_pass(
        which: prop::sample::Index,
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        for ((_, target), seeds) in TARGETS.iter().zip(&*CORPORA) {
            let mut bytes = which.get(seeds).1.clone();
            for (at, byte, what) in &damage {
                if bytes.is_empty() {
                    break;
                }
                let at = at.index(bytes.len());
                match what {
                    0 => bytes[at] = *byte,
                    1 => bytes.insert(at, *byte),
                    _ => bytes.truncate(at),
                }
            }
            target(&bytes);
        }
    }
}
