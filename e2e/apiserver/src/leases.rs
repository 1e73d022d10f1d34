//! The calls on leases and token reviews.

use std::collections::HashMap;

use http::{Method, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::answer::{Answer, json_answer, status};
use crate::state::{State, Watcher, line, matches};

/// Answers a request whose body has been read.
pub(crate) fn answer(
    state: &mut State,
    method: &Method,
    path: &str,
    query: &str,
    body: &[u8],
) -> Response<Answer> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let segments: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match (method.as_str(), segments.as_slice()) {
        ("POST", ["apis", "authentication.k8s.io", "v1", "tokenreviews"]) => review(state, &body),
        (_, ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", rest @ ..]) => {
            let query = parameters(query);
            match (method.as_str(), rest) {
                ("GET", []) if query.get("watch").is_some_and(|watch| watch == "true") => {
                    watch(state, namespace, &query)
                }
                ("GET", []) => list(state, namespace, &query),
                ("POST", []) => create(state, namespace, body),
                ("GET", [name]) => get(state, namespace, name),
                ("PUT", [name]) => update(state, namespace, name, body),
                ("DELETE", [name]) => delete(state, namespace, name, &body),
                _ => status(405, "MethodNotAllowed", "no such call"),
            }
        }
        _ => status(404, "NotFound", "no such path"),
    }
}

fn review(state: &State, body: &Value) -> Response<Answer> {
    let token = body["spec"]["token"].as_str().unwrap_or_default();
    let unknown = json!({ "authenticated": false, "user": {}, "error": "" });
    let status = state.reviews.get(token).cloned().unwrap_or(unknown);
    json_answer(201, &json!({ "kind": "TokenReview", "spec": body["spec"], "status": status }))
}

fn list(state: &State, namespace: &str, query: &HashMap<String, String>) -> Response<Answer> {
    let selector = query.get("labelSelector").map_or("", String::as_str);
    let items: Vec<Value> =
        state.list(namespace).into_iter().filter(|lease| matches(selector, lease)).collect();
    let version = state.version.to_string();
    json_answer(
        200,
        &json!({ "kind": "LeaseList", "metadata": { "resourceVersion": version }, "items": items }),
    )
}

fn watch(state: &mut State, namespace: &str, query: &HashMap<String, String>) -> Response<Answer> {
    let from: u64 = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    if from < state.compacted {
        return status(410, "Expired", "too old resource version");
    }
    let (lines, receiver) = mpsc::unbounded_channel();
    let selector = query.get("labelSelector").cloned().unwrap_or_default();
    let watcher = Watcher { namespace: namespace.to_owned(), selector, lines };
    for (version, kind, lease) in &state.history {
        if *version > from
            && let Some(line) = watcher.event(kind, lease)
        {
            let _ = watcher.lines.send(line);
        }
    }
    let bookmark = json!({ "kind": "Lease", "metadata": { "resourceVersion": state.version.to_string() } });
    let _ = watcher.lines.send(line("BOOKMARK", &bookmark));
    state.watchers.push(watcher);
    Response::new(Answer::Lines(receiver))
}

fn create(state: &mut State, namespace: &str, lease: Value) -> Response<Answer> {
    let name = lease["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if state.leases.contains_key(&(namespace.to_owned(), name)) {
        return status(409, "AlreadyExists", "it exists");
    }
    json_answer(201, &state.write(namespace, lease))
}

fn get(state: &State, namespace: &str, name: &str) -> Response<Answer> {
    match state.leases.get(&(namespace.to_owned(), name.to_owned())) {
        Some(lease) => json_answer(200, lease),
        None => status(404, "NotFound", "there is none"),
    }
}

fn update(state: &mut State, namespace: &str, name: &str, lease: Value) -> Response<Answer> {
    let Some(there) = state.leases.get(&(namespace.to_owned(), name.to_owned())) else {
        return status(404, "NotFound", "there is none");
    };
    let wanted = &lease["metadata"]["resourceVersion"];
    if !wanted.is_null() && *wanted != there["metadata"]["resourceVersion"] {
        return status(409, "Conflict", "it was changed");
    }
    json_answer(200, &state.write(namespace, lease))
}

fn delete(state: &mut State, namespace: &str, name: &str, options: &Value) -> Response<Answer> {
    let Some(there) = state.leases.get(&(namespace.to_owned(), name.to_owned())) else {
        return status(404, "NotFound", "there is none");
    };
    let wanted = &options["preconditions"]["resourceVersion"];
    if !wanted.is_null() && *wanted != there["metadata"]["resourceVersion"] {
        return status(409, "Conflict", "it was changed");
    }
    state.delete(namespace, name);
    json_answer(200, &json!({ "kind": "Status", "status": "Success" }))
}

fn parameters(query: &str) -> HashMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decode(key), decode(value))).collect()
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
