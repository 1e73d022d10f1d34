//! What a release ships besides images: packed charts and systemd units.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::helm::{CHARTS, helm, root, utf8};
use crate::yaml;

/// A packed chart renders as the folder does, and its links lead to the given URL.
#[test]
fn packed_charts_render_and_link_to_the_project() -> Result<()> {
    let url = "https://git.example.com/konnectivity/blob/v1";
    for source in [url, ""] {
        let out = tempfile::tempdir()?;
        let packed = Command::new(root().join("hack/package-charts"))
            .arg(out.path())
            .env("SOURCE_URL", source)
            .env("IMAGE_REGISTRY", "registry.example.com/konnectivity")
            .output()?;
        ensure!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        for chart in CHARTS {
            let name = chart.name();
            let meta = yaml::document(&fs::read_to_string(chart.folder().join("Chart.yaml"))?)?;
            let file =
                out.path().join(format!("{name}-{}.tgz", meta["version"].as_str().context("a version")?));
            let (file, values) = (utf8(&file)?.to_owned(), chart.case("everything"));
            helm(&["lint", "--strict", &file, "--values", utf8(&values)?])?;
            let told = helm(&["show", "chart", &file])?;
            let told = yaml::document(&told)?;
            let annotation = |key: &str| told["annotations"][format!("artifacthub.io/{key}")].as_str();
            for key in ["license", "category", "changes", "images"] {
                let text = annotation(key).with_context(|| format!("{name}: no annotation {key}"))?;
                yaml::document(text)?;
            }
            ensure!(told["maintainers"][0]["name"].is_string(), "no maintainer");
            let args = ["template", name, &file, "--namespace", "kube-system", "--values", utf8(&values)?];
            let rendered = helm(&args)?;
            let readme = helm(&["show", "readme", &file])?;
            let relative = readme.split("](").skip(1).find(|link| !link.starts_with("http"));
            ensure!(relative.is_none(), "{name}: a link of the README to {relative:?}");

            let runbook = "/docs/alerts.md#konnectivity";
            if source.is_empty() {
                ensure!(rendered.contains(&format!("runbook_url: {}", &runbook[1..])), "{name}: no runbook");
            } else {
                ensure!(told["home"] == url && annotation("links").is_some(), "{name}: {told}");
                ensure!(rendered.contains(&format!("runbook_url: {url}{runbook}")), "{name}: no runbook");
                ensure!(readme.contains(&format!("]({url}/docs/install.md)")), "{name}: README");
            }
            let own = helm(
                &[&args[..], &["--set", "prometheus.rules.runbookBaseURL=https://r.example.com/x"]].concat(),
            )?;
            ensure!(own.contains("runbook_url: https://r.example.com/x#konnectivity"), "{name}: an own URL");
        }
    }
    Ok(())
}

/// A platform that this machine cannot build ends the release with one line, before anything is written.
#[test]
fn platforms_that_cannot_be_built_are_refused_before_the_build() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // This compiler has no standard library for any platform.
    let compiler = folder.path().join("rustc");
    fs::write(&compiler, "#!/bin/sh\necho /nonexistent\n")?;
    fs::set_permissions(&compiler, PermissionsExt::from_mode(0o755))?;
    let path = format!("{}:{}", utf8(folder.path())?, std::env::var("PATH")?);
    let out = folder.path().join("out");
    for (platforms, code, said) in [
        (&["linux-amd64", "linux-riscv"][..], 2, "hack/release: unknown platform 'linux-riscv'; known are "),
        (&["linux-arm64"], 1, "hack/release: cannot build linux-arm64: there is no "),
    ] {
        let release = Command::new(root().join("hack/release"))
            .arg(&out)
            .args(platforms)
            .env("PATH", &path)
            .env("TARGET_DIR", folder.path().join("target"))
            .output()?;
        let text = String::from_utf8(release.stderr)?;
        ensure!(release.status.code() == Some(code), "{platforms:?}: {}: {text}", release.status);
        ensure!(text.starts_with(said) && text.lines().count() == 1, "{platforms:?}: {text}");
        ensure!(!out.exists(), "{platforms:?}: files of a release that was refused");
    }
    Ok(())
}

/// systemd takes the units and finds them well confined, if it is installed; a stop ends the programs before it kills them.
#[test]
fn systemd_takes_the_units() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (program, grace) in
        [("proxy-server", "--graceful-shutdown-timeout=15s"), ("proxy-agent", "--drain-timeout=15s")]
    {
        let unit = fs::read_to_string(root().join(format!("images/systemd/{program}.service")))?;
        ensure!(unit.contains(grace) && unit.contains("TimeoutStopSec=30"), "{program}: a stop would kill");
        let file = folder.path().join(format!("{program}.service"));
        fs::write(&file, unit.replace(&format!("/usr/local/bin/{program}"), "/bin/true"))?;
        for args in
            [&["verify", "--man=no"][..], &["security", "--offline=true", "--threshold=20", "--no-pager"]]
        {
            let output = match Command::new("systemd-analyze").args(args).arg(&file).output() {
                Ok(output) => output,
                Err(error) if std::env::var_os("CI").is_some() => {
                    return Err(error).context("systemd-analyze");
                }
                Err(_) => continue,
            };
            let said = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{program}: systemd-analyze {args:?}: {said}");
        }
    }
    Ok(())
}
