//! Converts YAML to JSON values, as Kubernetes does. Values that YAML 1.1 reads differently (octal numbers, `yes`) must not
//! appear in the charts' output, so YAML 1.2's rules apply.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Number, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// All non-empty documents of a stream.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = YamlLoader::load_from_str(text).with_context(|| format!("no YAML:\n{text}"))?;
    let values = documents.iter().map(value).collect::<Result<Vec<_>>>()?;
    Ok(values.into_iter().filter(|value| !value.is_null()).collect())
}

/// The only document of a stream.
pub(crate) fn document(text: &str) -> Result<Value> {
    let mut all = documents(text)?;
    let first = all.pop().context("an empty document")?;
    if !all.is_empty() {
        bail!("more than one document");
    }
    Ok(first)
}

fn value(yaml: &Yaml) -> Result<Value> {
    Ok(match yaml {
        Yaml::Null => Value::Null,
        Yaml::Boolean(flag) => Value::Bool(*flag),
        Yaml::Integer(number) => Value::Number((*number).into()),
        Yaml::Real(text) => {
            let number = text.parse().ok().and_then(Number::from_f64);
            Value::Number(number.with_context(|| format!("no number: {text}"))?)
        }
        Yaml::String(text) => Value::String(text.clone()),
        Yaml::Array(items) => Value::Array(items.iter().map(value).collect::<Result<_>>()?),
        Yaml::Hash(entries) => {
            let mut map = Map::new();
            for (key, entry) in entries {
                let key = key.as_str().with_context(|| format!("a key that is no string: {key:?}"))?;
                if map.insert(key.to_owned(), value(entry)?).is_some() {
                    bail!("the key {key} twice");
                }
            }
            Value::Object(map)
        }
        Yaml::Alias(_) | Yaml::BadValue => bail!("YAML that no manifest has: {yaml:?}"),
    })
}
