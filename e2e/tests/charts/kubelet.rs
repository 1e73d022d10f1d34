//! The parts of kubelet that a process on this machine needs: volumes, environment, arguments and probes come from the rendered
//! pod only. It never adds an argument.
//!
//! A process has no mount namespace of its own here, so a path in a mount is rewritten to the folder of its volume.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use e2e::http1;
use e2e::process::{Process, Recipe};
use e2e::program::Program;
use e2e::wait::{DEADLINE, until};
use serde_json::Value;
use tempfile::TempDir;

use crate::pods::{Pod, list, string};
use crate::rights::readable;

/// One node: its files, and the Secrets, ConfigMaps and tokens for its pods.
pub(crate) struct Kubelet {
    folder: TempDir,
    /// Secrets and ConfigMaps by kind and name: keys and contents.
    kept: BTreeMap<(&'static str, String), BTreeMap<String, Vec<u8>>>,
    /// Service account tokens by audience.
    tokens: BTreeMap<String, String>,
    /// The folder of the pod's own account, if its token is mounted.
    account: Option<PathBuf>,
    /// kube-apiserver's address in the pods' environment.
    apiserver: Option<SocketAddr>,
    /// Whether host paths are those of this machine.
    real: bool,
}

/// A container that runs as a process.
pub(crate) struct Running {
    pub(crate) process: Process,
    /// Mount paths and their folders, the longest path first.
    mounts: Vec<(String, PathBuf)>,
    container: Value,
}

impl Kubelet {
    pub(crate) fn new() -> Result<Self> {
        // Short, because a Unix socket's path may have 107 bytes.
        let folder = tempfile::Builder::new().prefix("kl").tempdir()?;
        Ok(Self {
            folder,
            kept: BTreeMap::new(),
            tokens: BTreeMap::new(),
            account: None,
            apiserver: None,
            real: false,
        })
    }

    /// Adds a `Secret` or `ConfigMap` with the contents of files.
    pub(crate) fn keep(&mut self, kind: &'static str, name: &str, files: &[(&str, &Path)]) -> Result<()> {
        let mut data = BTreeMap::new();
        for (key, path) in files {
            data.insert((*key).to_owned(), std::fs::read(path)?);
        }
        self.kept.insert((kind, name.to_owned()), data);
        Ok(())
    }

    /// Sets the token that the node's service accounts get for an audience.
    pub(crate) fn token(&mut self, audience: &str, token: &str) {
        self.tokens.insert(audience.to_owned(), token.to_owned());
    }

    /// The same from an API object.
    pub(crate) fn keep_object(&mut self, kind: &'static str, object: &Value) -> Result<()> {
        let mut data = BTreeMap::new();
        for (key, value) in object["data"].as_object().into_iter().flatten() {
            let text = value.as_str().context("data that is no text")?;
            let content = if kind == "Secret" { STANDARD.decode(text)? } else { text.as_bytes().to_vec() };
            data.insert(key.clone(), content);
        }
        self.kept.insert((kind, string(object, "/metadata/name").to_owned()), data);
        Ok(())
    }

    /// Adds the pod's account, which is mounted without a volume in the pod.
    pub(crate) fn account(&mut self, namespace: &str, token: &str, ca: &[u8]) -> Result<()> {
        let folder = self.folder.path().join("account");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("namespace"), namespace)?;
        std::fs::write(folder.join("token"), token)?;
        std::fs::write(folder.join("ca.crt"), ca)?;
        self.account = Some(folder);
        Ok(())
    }

    /// Uses this machine's own folders as host paths, because other processes use them as well. Values must name folders of the
    /// test.
    pub(crate) fn real_host(&mut self) {
        self.real = true;
    }

    /// Sets kube-apiserver's address.
    pub(crate) fn apiserver(&mut self, address: SocketAddr) {
        self.apiserver = Some(address);
    }

    /// Copies a file to a host path.
    pub(crate) fn host_file(&self, path: &str, source: &Path) -> Result<()> {
        let target = self.host(path);
        std::fs::create_dir_all(target.parent().context("a file in a folder")?)?;
        std::fs::copy(source, target)?;
        Ok(())
    }

    fn host(&self, path: &str) -> PathBuf {
        if self.real {
            return path.into();
        }
        self.folder.path().join("h").join(path.trim_start_matches('/'))
    }

    /// Starts the first container of a pod.
    pub(crate) fn run(&self, pod: &Pod, name: &str) -> Result<Running> {
        let container = pod.main()?.clone();
        let mut mounts = Vec::new();
        for mount in list(&container, "/volumeMounts") {
            let volume = list(&pod.spec, "/volumes").iter().find(|volume| volume["name"] == mount["name"]);
            let volume = volume.context("a mount without volume")?;
            let folder = self.volume(volume, name)?;
            if volume.get("projected").is_some() {
                readable(&pod.spec, &container, volume)?;
            }
            mounts.push((string(mount, "/mountPath").to_owned(), folder));
        }
        mounts.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        let mut env = environment(&container, name)?;
        if let Some(address) = self.apiserver {
            env.push(("KUBERNETES_SERVICE_HOST".into(), address.ip().to_string()));
            env.push(("KUBERNETES_SERVICE_PORT".into(), address.port().to_string()));
        }
        let args = list(&container, "/args").iter().filter_map(Value::as_str);
        let args = args.map(|argument| rewrite(&expand(argument, &env), &mounts)).collect();
        let recipe = Recipe { name: name.to_owned(), program: self.program(&container)?, args, env };
        let recipe = match &self.account {
            Some(folder) if pod.spec["automountServiceAccountToken"] == true => with_account(recipe, folder),
            _ => recipe,
        };
        Ok(Running { process: Process::spawn(recipe)?, mounts, container })
    }

    /// The folder or file of a volume.
    fn volume(&self, volume: &Value, pod: &str) -> Result<PathBuf> {
        if let Some(path) = volume["hostPath"]["path"].as_str() {
            let target = self.host(path);
            match string(volume, "/hostPath/type") {
                "DirectoryOrCreate" => std::fs::create_dir_all(&target)?,
                "Directory" => ensure!(target.is_dir(), "the host has no folder {path}"),
                "File" => ensure!(target.is_file(), "the host has no file {path}"),
                other => bail!("a hostPath of type {other:?}"),
            }
            return Ok(target);
        }
        let target = self.folder.path().join(pod).join(string(volume, "/name"));
        std::fs::create_dir_all(&target)?;
        if volume.get("emptyDir").is_some() {
            return Ok(target);
        }
        let sources = list(volume, "/projected/sources");
        ensure!(!sources.is_empty(), "a volume of an unknown kind: {volume}");
        for source in sources {
            self.project(source, &target)?;
        }
        Ok(target)
    }

    /// The program for the container's command.
    fn program(&self, container: &Value) -> Result<PathBuf> {
        match string(container, "/command/0") {
            "/proxy-server" | "/usr/bin/proxy-server" => Program::Server.path(),
            "/proxy-agent" | "/usr/bin/proxy-agent" => Program::Agent.path(),
            // In the image it is a link to the program, too.
            "/konnectivity-check" => {
                let link = self.folder.path().join("konnectivity-check");
                if !link.is_symlink() {
                    std::os::unix::fs::symlink(Program::Agent.path()?, &link)?;
                }
                Ok(link)
            }
            other => bail!("the images have no {other}"),
        }
    }

    fn project(&self, source: &Value, target: &Path) -> Result<()> {
        if let Some(token) = source.get("serviceAccountToken") {
            let audience = string(token, "/audience");
            let content = self.tokens.get(audience).with_context(|| format!("no token for {audience:?}"))?;
            std::fs::write(target.join(string(token, "/path")), content)?;
            return Ok(());
        }
        for (field, kind) in [("secret", "Secret"), ("configMap", "ConfigMap")] {
            let Some(object) = source.get(field) else { continue };
            let name = string(object, "/name");
            let data =
                self.kept.get(&(kind, name.to_owned())).with_context(|| format!("no {kind} {name}"))?;
            for item in list(object, "/items") {
                let key = string(item, "/key");
                let content = data.get(key).with_context(|| format!("{kind} {name} without {key}"))?;
                std::fs::write(target.join(string(item, "/path")), content)?;
            }
        }
        Ok(())
    }
}

impl Running {
    /// The path on this machine for a path in the container.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        rewrite(path, &self.mounts).into()
    }

    /// Waits until a probe (`livenessProbe`, `readinessProbe`, `startupProbe`) gets status 200.
    pub(crate) async fn wait_probe(&mut self, probe: &str) -> Result<()> {
        let get = &self.container[probe]["httpGet"];
        let port = list(&self.container, "/ports").iter().find(|port| port["name"] == get["port"]);
        let port =
            port.and_then(|port| port["containerPort"].as_u64()).context("a probe of an unknown port")?;
        let address = ([127, 0, 0, 1], u16::try_from(port)?).into();
        let path = get["path"].as_str().context("a probe without path")?;
        let what = format!("200 of {path}");
        let found = until(&what, DEADLINE, || async {
            let answer = http1::get(address, path).await.ok()?;
            (answer.head.status == 200).then_some(())
        });
        let found = found.await;
        self.process.check_alive()?;
        found.map_err(|error| self.process.explain(&error))
    }
}

/// The same command in a separate mount namespace, with the account's files at their usual path.
fn with_account(recipe: Recipe, folder: &Path) -> Recipe {
    let place = "/run/secrets/kubernetes.io/serviceaccount";
    let script =
        format!("mount -t tmpfs none /run && mkdir -p {place} && mount --bind \"$0\" {place} && exec \"$@\"");
    let head = ["--mount", "sh", "-c", &script].map(str::to_owned);
    let tail = [folder.display().to_string(), recipe.program.display().to_string()];
    let args = head.into_iter().chain(tail).chain(recipe.args).collect();
    Recipe { program: "unshare".into(), args, ..recipe }
}

/// The environment: values, and the fields of the pod that the charts use.
fn environment(container: &Value, pod: &str) -> Result<Vec<(String, String)>> {
    let mut env = Vec::new();
    for entry in list(container, "/env") {
        let value = match string(entry, "/valueFrom/fieldRef/fieldPath") {
            "" => string(entry, "/value"),
            "metadata.name" => pod,
            "metadata.uid" => "3c1f2a4e-7b6d-4e0f-9a51-8d2c4b6e0f13",
            "spec.nodeName" => "node-1",
            "status.hostIP" | "status.podIP" => "127.0.0.1",
            other => bail!("the field {other} is not known here"),
        };
        env.push((string(entry, "/name").to_owned(), value.to_owned()));
    }
    Ok(env)
}

/// Replaces `$(NAME)` of defined variables.
fn expand(argument: &str, env: &[(String, String)]) -> String {
    env.iter().fold(argument.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
}

/// Replaces the mount by its folder in `--flag=/mount/file`, `--frontend=grpc+unix:/mount/file` or `/mount/file`.
fn rewrite(argument: &str, mounts: &[(String, PathBuf)]) -> String {
    let begin = ["+unix:", "="].iter().find_map(|mark| Some(argument.find(mark)? + mark.len()));
    let (flag, path) = argument.split_at(begin.unwrap_or_default());
    for (mount, folder) in mounts {
        if let Some(rest) = path.strip_prefix(mount.as_str())
            && (rest.is_empty() || rest.starts_with('/'))
        {
            return format!("{flag}{}{rest}", folder.display());
        }
    }
    argument.to_owned()
}
