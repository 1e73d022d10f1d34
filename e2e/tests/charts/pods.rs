//! The pods of rendered objects, in every kind of object.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::yaml;

/// A rendered pod: labels and spec.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Kind and name of its owner, for messages.
    pub(crate) owner: String,
    pub(crate) labels: Value,
    pub(crate) spec: Value,
    /// Whether `helm test` creates it.
    pub(crate) test: bool,
}

impl Pod {
    pub(crate) fn containers(&self) -> &[Value] {
        self.spec["containers"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The first container: the program of this project.
    pub(crate) fn main(&self) -> Result<&Value> {
        self.containers().first().with_context(|| format!("{} without containers", self.owner))
    }
}

/// The objects of a kind.
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// A text field; empty if it is missing.
pub(crate) fn string<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The items of a list; empty if it is missing.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The pods of Deployments, DaemonSets and tests, static pods in ConfigMaps, and sidecars.
pub(crate) fn pods(objects: &[Value]) -> Result<Vec<Pod>> {
    let mut found = Vec::new();
    for object in objects {
        let owner = format!("{} {}", string(object, "/kind"), string(object, "/metadata/name"));
        match string(object, "/kind") {
            "Deployment" | "DaemonSet" => {
                let template = &object["spec"]["template"];
                let labels = template["metadata"]["labels"].clone();
                found.push(Pod { owner, labels, spec: template["spec"].clone(), test: false });
            }
            "Pod" => {
                let labels = object["metadata"]["labels"].clone();
                let test = string(object, "/metadata/annotations/helm.sh~1hook") == "test";
                found.push(Pod { owner, labels, spec: object["spec"].clone(), test });
            }
            "ConfigMap" => found.extend(inside(object, &owner)?),
            _ => {}
        }
    }
    Ok(found)
}

/// The pod inside a ConfigMap, if it contains one.
fn inside(object: &Value, owner: &str) -> Result<Option<Pod>> {
    let owner = format!("pod in {owner}");
    if let Some(text) = object["data"]["konnectivity-server.yaml"].as_str() {
        let pod = yaml::document(text)?;
        let labels = pod["metadata"]["labels"].clone();
        return Ok(Some(Pod { owner, labels, spec: pod["spec"].clone(), test: false }));
    }
    if let Some(text) = object["data"]["sidecar.yaml"].as_str() {
        return Ok(Some(Pod { owner, labels: json!({}), spec: yaml::document(text)?, test: false }));
    }
    Ok(None)
}
