//! Checks who may read the files that kubelet projects into a volume: they belong to root, their group is the pod's `fsGroup`
//! if there is one, and a container's user is that of its security context, otherwise the image's. The tests' own user owns the
//! files that the fake kubelet writes, so the kernel would never refuse them to a process of the test.
//!
//! Sources: kubelet's projected volumes and `SetVolumeOwnership`.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::pods::{list, string};

/// User and group of the images.
const IMAGE: u64 = 65532;
/// The mode of a projected volume without one.
const DEFAULT_MODE: u64 = 0o644;

/// Whether every user that mounts the volume may read these files.
pub(crate) fn open_to_all(volume: &Value) -> bool {
    mode(volume) & 0o004 != 0
}

fn mode(volume: &Value) -> u64 {
    volume["projected"]["defaultMode"].as_u64().unwrap_or(DEFAULT_MODE)
}

/// Checks that the container's user may read the files of a projected volume.
pub(crate) fn readable(spec: &Value, container: &Value, volume: &Value) -> Result<()> {
    let pods = &spec["securityContext"];
    let id = |field: &str| container["securityContext"][field].as_u64().or_else(|| pods[field].as_u64());
    let user = id("runAsUser").unwrap_or(IMAGE);
    let fs_group = pods["fsGroup"].as_u64();
    let more = list(pods, "/supplementalGroups").iter().filter_map(Value::as_u64);
    let groups: BTreeSet<u64> = more.chain(fs_group).chain([id("runAsGroup").unwrap_or(IMAGE)]).collect();
    // With an fsGroup kubelet makes the files group-readable, whatever the mode says.
    let mode = mode(volume) | fs_group.map_or(0, |_| 0o440);
    let owned = user == 0 && mode & 0o400 != 0;
    let shared = groups.contains(&fs_group.unwrap_or(0)) && mode & 0o040 != 0;
    ensure!(
        owned || shared || mode & 0o004 != 0,
        "permission denied: user {user} with groups {groups:?} reads the volume {}, whose files are {mode:04o}, root's and \
         group {}'s",
        string(volume, "/name"),
        fs_group.unwrap_or(0)
    );
    Ok(())
}
