//! Pins processes to one CPU.

use std::fs::read_dir;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins all threads of some processes to the first CPU that they may use, until this is dropped.
pub(super) struct Pinned {
    before: Vec<(Pid, CpuSet)>,
}

impl Pinned {
    /// Moves the threads of the processes with these ids.
    pub(super) fn to_first(processes: impl IntoIterator<Item = u32>) -> Result<Self> {
        let mut pinned = Self { before: Vec::new() };
        for process in processes {
            for thread in threads(process)? {
                // The thread may have ended meanwhile.
                let Ok(may) = sched_getaffinity(Some(thread)) else { continue };
                let first = (0..CpuSet::MAX_CPU).find(|cpu| may.is_set(*cpu)).context("no processor")?;
                let mut one = CpuSet::new();
                one.set(first);
                if sched_setaffinity(Some(thread), &one).is_ok() {
                    pinned.before.push((thread, may));
                }
            }
        }
        Ok(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for (thread, may) in &self.before {
            // A thread that has ended needs no CPU.
            let _ = sched_setaffinity(Some(*thread), may);
        }
    }
}

fn threads(process: u32) -> Result<Vec<Pid>> {
    let mut threads = Vec::new();
    for entry in read_dir(format!("/proc/{process}/task")).context("the process is gone")? {
        let id: i32 = entry?.file_name().to_string_lossy().parse()?;
        threads.extend(Pid::from_raw(id));
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_moved_and_come_back() {
        let (told, moved) = std::sync::mpsc::channel::<()>();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            told.send(()).unwrap();
            let _ = ended.recv();
        });
        moved.recv().unwrap();
        let before = sched_getaffinity(None).unwrap();
        let pinned = Pinned::to_first([std::process::id()]).unwrap();
        assert!(pinned.before.len() >= 2, "the other thread too");
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
        drop(end);
        other.join().unwrap();
    }
}
