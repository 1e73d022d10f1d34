//! `PUT /debug/flags/v`, as in Kubernetes' components: the body is the new verbosity. With `?for=10m` the old one returns after
//! that time. GET answers the present one.

use std::time::Duration;

use flags::{GoDuration, Value};
use http::{Method, StatusCode};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::local::{Body, refusal};
use super::routes::{Request, Response, Routes, error, text};
use crate::logs::VerbosityLevel;

/// The verbosity that remains, and the timer that returns to it.
struct Return {
    level: i32,
    timer: Option<AbortHandle>,
}

/// Adds `/debug/flags/v`.
pub fn with_verbosity(routes: Routes, level: VerbosityLevel) -> Routes {
    let returns = Mutex::new(Return { level: level.get(), timer: None });
    routes.at("/debug/flags/v", move |request| {
        if request.method == Method::GET {
            return text(StatusCode::OK, format!("{}\n", level.get()));
        }
        if let Some(refusal) = refusal(request, &Method::PUT) {
            return refusal;
        }
        match asked(request) {
            Ok((new, time)) => set(&level, new, time, &returns),
            Err(why) => error(StatusCode::BAD_REQUEST, why + "\n"),
        }
    })
}

/// The new level, and for how long.
fn asked(request: &Request) -> Result<(i32, Option<Duration>), String> {
    let body = request.extensions.get::<Body>().map(|body| String::from_utf8_lossy(&body.0).into_owned());
    let body = body.unwrap_or_default();
    let level =
        body.trim().parse().map_err(|_| format!("the body {body:?} is no verbosity: send a number"))?;
    let query = request.uri.query().unwrap_or_default();
    let time = query.split('&').find_map(|pair| pair.strip_prefix("for=")).filter(|time| !time.is_empty());
    let time = time.map(|time| match GoDuration::parse(time).map(GoDuration::or_zero) {
        Ok(Duration::ZERO) => Err(format!("for={time}: use a time above 0")),
        Ok(time) => Ok(time),
        Err(why) => Err(format!("for={time}: {why}")),
    });
    Ok((level, time.transpose()?))
}

fn set(level: &VerbosityLevel, new: i32, time: Option<Duration>, returns: &Mutex<Return>) -> Response {
    let mut returns = returns.lock();
    returns.timer.take().inspect(AbortHandle::abort);
    change(level, new);
    // Kubernetes' answer.
    let done = format!("successfully set klog.logging.verbosity to {new}");
    let Some(time) = time else {
        returns.level = new;
        return text(StatusCode::OK, done + "\n");
    };
    let (level, before) = (level.clone(), returns.level);
    let timer = tokio::spawn(async move {
        sleep(time).await;
        change(&level, before);
    });
    returns.timer = Some(timer.abort_handle());
    text(StatusCode::OK, format!("{done} for {}, then {before}\n", GoDuration::from(time)))
}

fn change(level: &VerbosityLevel, new: i32) {
    let old = level.get();
    level.set(new);
    tracing::info!(target: "v0", from = old, to = new, "verbosity changed");
}
