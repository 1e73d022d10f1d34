//! kubectl cp.

use std::fs::{create_dir_all, read, write};

use anyhow::{Context, Result, ensure};
use e2e::payload::Payload;

use crate::world::Lane;

/// Copies a folder with files of several sizes into the container and back, and compares it.
pub(crate) async fn there_and_back(lane: Lane) -> Result<()> {
    let [from, there, back] = ["copy-from", "copy-there", "copy-back"].map(|name| lane.scratch().join(name));
    let mut large = Vec::new();
    Payload::new(9, 3_000_000).send(&mut large).await?;
    let files: [(&str, &[u8]); 4] =
        [("empty", b""), ("with a space", b"x\n"), ("large", &large), ("below/deep", b"deep")];
    create_dir_all(from.join("below"))?;
    for (name, content) in files {
        write(from.join(name), content)?;
    }
    let text =
        |path: &std::path::Path| path.to_str().map(ToOwned::to_owned).context("a path that is not text");
    let inside = format!("app:{}", text(&there)?);
    lane.ok(&["cp", "-c", "app", &text(&from)?, &inside]).await?;
    lane.ok(&["cp", "-c", "app", &inside, &text(&back)?]).await?;
    for (name, content) in files {
        for folder in [&there, &back] {
            ensure!(read(folder.join(name))? == content, "{name} is another in {}", folder.display());
        }
    }
    Ok(())
}
