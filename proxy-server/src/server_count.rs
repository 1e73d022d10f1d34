//! The number of servers that this server tells agents: a flag, or a file that may change.
//!
//! A file that cannot be used changes nothing: the last good number stays, is logged once and shown by `/readyz?verbose`. Native
//! agents learn a new number by the next probe of their streams, Go agents when they connect.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Interval of the checks of the file.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The largest number that a file may hold. Agents would search for more servers than there are at every interval.
const MAX_COUNT: u32 = 1_000;

/// The longest content of a file, in bytes.
const MAX_FILE_BYTES: u64 = 64;

/// The present number, shared by its users.
#[derive(Debug, Clone)]
pub struct ServerCount(Arc<State>);

#[derive(Debug)]
struct State {
    count: AtomicU32,
    /// Why the file cannot be used.
    fault: Mutex<Option<String>>,
}

impl ServerCount {
    /// A number that holds until [`Self::watch`] reads another one.
    pub fn new(count: u32) -> Self {
        Self(Arc::new(State { count: AtomicU32::new(count), fault: Mutex::new(None) }))
    }

    /// The present number.
    pub fn get(&self) -> u32 {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Why the file cannot be used, if it cannot.
    pub fn fault(&self) -> Option<String> {
        self.0.fault.lock().clone()
    }

    /// Takes the file's number at once, and then whenever two looks agree on it. The future never ends. An unusable file is logged.
    /// A read of so small a file costs no more than a look at its metadata.
    pub fn watch(self, path: PathBuf) -> impl Future<Output = ()> {
        let (path, mut last) = (Arc::<Path>::from(path), None);
        self.take(&path, read(&path));
        async move {
            loop {
                let file = Arc::clone(&path);
                let read =
                    spawn_blocking(move || read(&file)).await.unwrap_or_else(|error| Err(error.to_string()));
                // A file that is being written may have half a number.
                if last.as_ref() == Some(&read) {
                    self.take(&path, read.clone());
                }
                last = Some(read);
                sleep(FILE_CHECK_INTERVAL).await;
            }
        }
    }

    fn take(&self, path: &Path, read: Result<u32, String>) {
        let before = std::mem::replace(&mut *self.0.fault.lock(), read.clone().err());
        let file = path.display();
        match read {
            Ok(count) if self.0.count.swap(count, Ordering::Relaxed) != count || before.is_some() => {
                tracing::info!(%file, count, "number of servers read from --server-count-file");
            }
            Err(error) if before.as_ref() != Some(&error) => {
                let count = self.get();
                tracing::error!(%file, error, count, "--server-count-file cannot be used, the last number stays");
            }
            _ => {}
        }
    }
}

/// The number in the file: decimal digits, with blanks around them.
fn read(path: &Path) -> Result<u32, String> {
    let mut text = String::new();
    // Opening a pipe would wait for a writer.
    if !path.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let number = text.trim();
    match number.parse() {
        _ if text.len() as u64 > MAX_FILE_BYTES => Err(format!("it is longer than {MAX_FILE_BYTES} bytes")),
        _ if number.is_empty() => Err("it is empty".to_owned()),
        Ok(count) if (1..=MAX_COUNT).contains(&count) && !number.starts_with('+') => Ok(count),
        _ => Err(format!("it holds {number:?}, which is no number from 1 to {MAX_COUNT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        folder: tempfile::TempDir,
        count: ServerCount,
    }

    impl World {
        fn new(text: &str) -> Self {
            let world = Self { folder: tempfile::tempdir().unwrap(), count: ServerCount::new(7) };
            world.write(text);
            drop(world.count.clone().watch(world.path()));
            world
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("count")
        }

        fn write(&self, text: &str) {
            let next = self.folder.path().join("next");
            std::fs::write(&next, text).unwrap();
            std::fs::rename(next, self.path()).unwrap();
        }

        async fn until(&self, what: &str, condition: impl Fn(&ServerCount) -> bool) {
            let reached = async {
                while !condition(&self.count) {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
            assert!(reached.is_ok(), "{what}: {:?}", self.count);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_changes_the_number() {
        let world = World::new("3\n");
        assert_eq!((world.count.get(), world.count.fault()), (3, None));
        let watch = tokio::spawn(world.count.clone().watch(world.path()));
        world.write(" 5 ");
        world.until("replaced", |count| count.get() == 5).await;
        std::fs::write(world.path(), "12").unwrap();
        world.until("written in place", |count| count.get() == 12).await;
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_unusable_file_keeps_the_last_number_and_says_why() {
        let world = World::new("3");
        let watch = tokio::spawn(world.count.clone().watch(world.path()));
        let long = format!("{}1", " ".repeat(64));
        for (text, why) in [
            ("", "it is empty"),
            ("0", "it holds \"0\", which is no number from 1 to 1000"),
            ("\n", "it is empty"),
            ("-1", "it holds \"-1\""),
            ("+4", "it holds \"+4\""),
            ("4x", "it holds \"4x\""),
            ("1001", "it holds \"1001\""),
            ("99999999999999999999", "it holds \"99999999999999999999\""),
            (&long, "longer than 64 bytes"),
        ] {
            world.write(text);
            world.until(why, |count| count.fault().is_some_and(|fault| fault.contains(why))).await;
            assert_eq!(world.count.get(), 3, "{text:?}");
        }
        std::fs::write(world.path(), [0xff, 0xfe]).unwrap();
        world.until("no text", |count| count.fault().is_some_and(|fault| fault.contains("UTF-8"))).await;
        std::fs::remove_file(world.path()).unwrap();
        world.until("gone", |count| count.fault().is_some_and(|fault| fault.contains("No such file"))).await;
        assert_eq!(world.count.get(), 3);
        world.write("4");
        world.until("good again", |count| count.get() == 4 && count.fault().is_none()).await;
        watch.abort();
    }

    #[test]
    fn an_unusable_file_at_the_start_leaves_the_flag() {
        let world = World::new("many");
        assert_eq!(world.count.get(), 7);
        assert!(world.count.fault().unwrap().contains("\"many\""));
    }
}
