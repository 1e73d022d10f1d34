//! A headless Chromium, driven through chromedriver by the HTTP calls of WebDriver.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use e2e::http1::post;
use e2e::ports::Lease;
use e2e::process::{Process, Recipe};
use e2e::wait::{DEADLINE, until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The width and height of a desktop's window, and of a phone's, in CSS pixels.
pub(crate) const SIZES: [(u32, u32); 2] = [(1280, 900), (390, 844)];

/// WebDriver's codes of keys.
pub(crate) const TAB: &str = "\u{e004}";
pub(crate) const ENTER: &str = "\u{e007}";

/// A browser with one window. Dropping it ends the browser.
pub(crate) struct Browser {
    _driver: Process,
    _profile: TempDir,
    _port: Lease,
    address: SocketAddr,
    session: String,
}

impl Drop for Browser {
    /// A browser whose driver is killed goes on, and writes to its profile.
    fn drop(&mut self) {
        let request = format!(
            "DELETE /session{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.session, self.address
        );
        let ended = TcpStream::connect(self.address).and_then(|mut driver| {
            driver.set_read_timeout(Some(DEADLINE))?;
            driver.write_all(request.as_bytes())?;
            driver.read(&mut [0])
        });
        if let Err(error) = ended {
            eprintln!("cannot end the browser: {error}");
        }
    }
}

impl Browser {
    /// Starts chromedriver at the path `CHROMEDRIVER`, and a browser.
    pub(crate) async fn start() -> Result<Self> {
        let program =
            std::env::var_os("CHROMEDRIVER").context("CHROMEDRIVER is not set: hack/check page sets it")?;
        let port = Lease::new()?;
        let profile = tempfile::tempdir()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.port()));
        let recipe = Recipe {
            name: "chromedriver".to_owned(),
            program: PathBuf::from(program),
            args: vec![format!("--port={}", port.port())],
            env: vec![("TMPDIR".to_owned(), profile.path().display().to_string())],
        };
        let driver = Process::spawn(recipe)?;
        driver.wait_said("started successfully").await?;
        let mut browser =
            Self { _driver: driver, _profile: profile, _port: port, address, session: String::new() };
        // CI runs as root, where Chromium's sandbox refuses to work; containers have a small /dev/shm.
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.call("", wanted).await?;
        browser.session = format!("/{}", session["sessionId"].as_str().context("no session")?);
        Ok(browser)
    }

    /// One call of WebDriver's API.
    async fn call(&self, path: &str, body: Value) -> Result<Value> {
        let path = format!("/session{}{path}", self.session);
        let answer = post(self.address, &path, &body.to_string()).await?;
        ensure!(answer.head.status == 200, "{path}: {}", answer.body);
        let mut answer: Value = serde_json::from_str(&answer.body).with_context(|| path)?;
        Ok(answer["value"].take())
    }

    /// A command of Chromium's DevTools protocol.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Result<Value> {
        self.call("/goog/cdp/execute", json!({"cmd": command, "params": parameters})).await
    }

    /// Sets the window's size and whether the user prefers a dark page.
    pub(crate) async fn look(&self, (width, height): (u32, u32), dark: bool) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await?;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", media).await.map(drop)
    }

    /// Permits or forbids scripts of pages that are loaded from now on.
    pub(crate) async fn scripts(&self, permitted: bool) -> Result<()> {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({"value": !permitted})).await.map(drop)
    }

    /// Loads a page.
    pub(crate) async fn open(&self, url: &str) -> Result<()> {
        self.call("/url", json!({"url": url})).await.map(drop)
    }

    /// The value that a script returns.
    pub(crate) async fn run(&self, script: &str) -> Result<Value> {
        self.call("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Waits until a script returns true.
    pub(crate) async fn wait(&self, script: &str) -> Result<()> {
        until(script, DEADLINE, || async { (self.run(script).await.ok()? == true).then_some(()) }).await
    }

    /// Presses keys, one after another, in the element that has the focus.
    pub(crate) async fn press(&self, keys: &[&str]) -> Result<()> {
        let actions =
            keys.iter().flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})));
        let actions: Vec<_> = actions.collect();
        self.call("/actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}))
            .await
            .map(drop)
    }

    /// The messages of the browser's console since the last call: errors, also of the Content-Security-Policy.
    pub(crate) async fn console(&self) -> Result<Vec<String>> {
        let log = self.call("/se/log", json!({"type": "browser"})).await?;
        let entries = log.as_array().context("no log")?;
        Ok(entries.iter().filter_map(|entry| entry["message"].as_str()).map(str::to_owned).collect())
    }

    /// A picture of the window, as PNG.
    pub(crate) async fn screenshot(&self) -> Result<Vec<u8>> {
        let data = self.devtools("Page.captureScreenshot", json!({"format": "png"})).await?;
        Ok(BASE64_STANDARD.decode(data["data"].as_str().context("no picture")?)?)
    }
}
