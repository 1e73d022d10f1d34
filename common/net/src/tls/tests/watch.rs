//! The watch with a paused clock: what it loads, when, and what it reports.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::tls::pem::{Contents, ValidityCheck};
use crate::tls::{
    LegacyPkiObserver, Material, Options, Rotated, Tls, TlsError, Validities, ignore_legacy_pki, watch,
};

const EVERY: Duration = Duration::from_secs(10);

/// Files with one word for each read. `bad...` cannot be used, `gone` cannot be read.
#[derive(Debug)]
struct Fake {
    /// The contents for the next reads; the last one stays.
    files: Mutex<Vec<String>>,
    takes: Mutex<usize>,
}

impl Options for Arc<Fake> {
    type Config = String;

    fn read(&self) -> Result<Material, TlsError> {
        let mut files = self.files.lock();
        let now = if files.len() > 1 { files.remove(0) } else { files[0].clone() };
        if now == "gone" {
            return Err(TlsError::file("cannot read x: no such file", &[]));
        }
        let contents = Contents { path: "x".into(), bytes: now.into() };
        Ok(Material { pair: None, authorities: Some(contents) })
    }

    fn build(
        &self,
        material: &Material,
        _observer: &LegacyPkiObserver,
        _check: ValidityCheck,
    ) -> Result<(String, Validities), TlsError> {
        *self.takes.lock() += 1;
        let bytes = &material.authorities.as_ref().unwrap().bytes;
        let word = String::from_utf8_lossy(bytes).into_owned();
        if word.starts_with("bad") {
            return Err(TlsError::ServerName(word));
        }
        Ok((word, Validities::default()))
    }
}

struct Rig {
    files: Arc<Fake>,
    tls: Tls<Arc<Fake>>,
    told: UnboundedReceiver<Rotated>,
    _watch: AbortOnDropHandle<()>,
}

impl Rig {
    /// Starts with `old` in use.
    fn new() -> Self {
        let files = Arc::new(Fake { files: Mutex::new(vec!["old".into()]), takes: Mutex::default() });
        let tls = Tls::load(Arc::clone(&files), ignore_legacy_pki()).unwrap();
        *files.takes.lock() = 0;
        let (tell, told) = unbounded_channel();
        let task = watch(tls.clone(), "test", EVERY, move |rotated| {
            let _ = tell.send(rotated);
        });
        Self { files, tls, told, _watch: AbortOnDropHandle::new(tokio::spawn(task)) }
    }

    fn write(&self, looks: &[&str]) {
        *self.files.files.lock() = looks.iter().map(|look| (*look).to_owned()).collect();
    }

    fn used(&self) -> String {
        self.tls.config().to_string()
    }

    /// Waits for a refusal, and returns its reason.
    async fn refusal(&mut self) -> String {
        match self.told.recv().await {
            Some(Rotated::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is reported for a minute of the paused clock.
    async fn silent(&mut self) {
        assert!(timeout(Duration::from_secs(60), self.told.recv()).await.is_err());
    }
}

const TAKEN: Option<Rotated> = Some(Rotated::Taken(Validities { own: None, authorities: None }));
const RESTORED: Option<Rotated> = Some(Rotated::Restored);

#[tokio::test(start_paused = true)]
async fn change_is_loaded_within_one_round_and_reported_once() {
    let mut rig = Rig::new();
    rig.silent().await;
    assert_eq!(*rig.files.takes.lock(), 0, "what did not change is not loaded again");
    let changed = Instant::now();
    rig.write(&["new"]);
    assert_eq!(rig.told.recv().await, TAKEN);
    assert!(changed.elapsed() <= EVERY + Duration::from_secs(1), "{:?}", changed.elapsed());
    assert_eq!(rig.used(), "new");
    rig.silent().await;
}

#[tokio::test(start_paused = true)]
async fn unusable_files_are_reported_once_and_tried_again() {
    let mut rig = Rig::new();
    for bad in ["bad", "gone", "bad again"] {
        rig.write(&[bad]);
        let why = rig.refusal().await;
        assert!(why.contains(if bad == "gone" { "no such file" } else { bad }), "{bad}: {why}");
        let before = *rig.files.takes.lock();
        rig.silent().await;
        assert_eq!(rig.used(), "old");
        assert!(*rig.files.takes.lock() >= before + 5 || bad == "gone", "it may become valid");
    }
    let before = *rig.files.takes.lock();
    rig.write(&["old"]);
    assert_eq!(rig.told.recv().await, RESTORED);
    rig.silent().await;
    assert_eq!(*rig.files.takes.lock(), before, "it is in use");
    rig.write(&["bad again"]);
    assert!(rig.refusal().await.contains("bad again"), "a new fault after all was well");
    rig.write(&["new"]);
    assert_eq!(rig.told.recv().await, TAKEN);
    assert_eq!(rig.used(), "new");
}

/// A writer is in the middle of a file: half a file is never judged if the rest follows soon.
#[tokio::test(start_paused = true)]
async fn a_half_written_file_is_waited_for() {
    let mut rig = Rig::new();
    rig.write(&["bad half", "bad three quarters", "new"]);
    assert_eq!(rig.told.recv().await, TAKEN);
    assert_eq!(rig.used(), "new");
    assert_eq!(*rig.files.takes.lock(), 1);
}

#[tokio::test(start_paused = true)]
async fn files_that_never_rest_are_left_alone() {
    let mut rig = Rig::new();
    let words: Vec<String> = (0..2_000).map(|number| format!("new {number}")).collect();
    rig.write(&words.iter().map(String::as_str).collect::<Vec<_>>());
    rig.silent().await;
    assert_eq!(rig.used(), "old");
    rig.write(&["at rest"]);
    assert_eq!(rig.told.recv().await, TAKEN);
}
