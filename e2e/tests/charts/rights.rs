//! Who may read what kubelet projects into a volume: files are root's, their group is the pod's `fsGroup` if there is one,
//! and a container's user is the one that its security context names, the image's otherwise. The tests' own user owns
//! what the stand-in writes, so that no file of theirs would ever be refused.
//!
//! Sources: kubelet's projected volumes and `SetVolumeOwnership`.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::pods::{list, string};

/// User and group of the images.
const IMAGE: u64 = 65532;
/// Of a projected volume that names none.
const DEFAULT_MODE: u64 = 0o644;

/// Everybody who mounts the volume may read these files.
pub(crate) fn open_to_all(volume: &Value) -> bool {
    mode(volume) & 0o004 != 0
}

fn mode(volume: &Value) -> u64 {
    volume["projected"]["defaultMode"].as_u64().unwrap_or(DEFAULT_MODE)
}

/// The user of a container may read a projected volume's files.
pub(crate) fn readable(spec: &Value, container: &Value, volume: &Value) -> Result<()> {
    let pods = &spec["securityContext"];
    let id = |field: &str| container["securityContext"][field].as_u64().or_else(|| pods[field].as_u64());
    let user = id("runAsUser").unwrap_or(IMAGE);
    let fs_group = pods["fsGroup"].as_u64();
    let more = list(pods, "/supplementalGroups").iter().filter_map(Value::as_u64);
    let groups: BTreeSet<u64> = more.chain(fs_group).chain([id("runAsGroup").unwrap_or(IMAGE)]).collect();
    // Where there is an fsGroup, kubelet lets it read whatever the mode says.
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
