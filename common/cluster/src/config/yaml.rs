//! Converts YAML to JSON values: a kubeconfig is small, and the other modules use JSON. JSON is also YAML.

use serde_json::{Map, Number, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// The deepest nesting; no kubeconfig has more.
const MAX_DEPTH: usize = 32;

/// Reads the first document.
///
/// # Errors
/// The fault, and its position.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let documents = YamlLoader::load_from_str(text).map_err(|error| error.to_string())?;
    convert(documents.first().unwrap_or(&Yaml::Null), MAX_DEPTH)
}

fn convert(yaml: &Yaml, depth: usize) -> Result<Value, String> {
    let Some(depth) = depth.checked_sub(1) else { return Err("it is nested too deeply".into()) };
    Ok(match yaml {
        Yaml::String(text) => Value::String(text.clone()),
        Yaml::Boolean(value) => Value::Bool(*value),
        Yaml::Integer(number) => Value::Number((*number).into()),
        Yaml::Real(text) => match text.parse().ok().and_then(Number::from_f64) {
            Some(number) => Value::Number(number),
            None => Value::String(text.clone()),
        },
        Yaml::Array(items) => {
            Value::Array(items.iter().map(|item| convert(item, depth)).collect::<Result<_, _>>()?)
        }
        Yaml::Hash(pairs) => {
            let pair = |(key, value): (&Yaml, &Yaml)| match key {
                Yaml::String(key) => Ok((key.clone(), convert(value, depth)?)),
                other => Err(format!("a key is not text: {other:?}")),
            };
            Value::Object(pairs.iter().map(pair).collect::<Result<Map<_, _>, _>>()?)
        }
        Yaml::Null => Value::Null,
        Yaml::Alias(_) | Yaml::BadValue => return Err("it has an invalid value".into()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_become_values() {
        let text = "# a comment\na: &x {b: 1, c: [yes, 'two', 2.5, ~]}\nd: *x\ne: |\n  line\n";
        let inner = json!({"b": 1, "c": ["yes", "two", 2.5, null]});
        assert_eq!(parse(text).unwrap(), json!({"a": inner, "d": inner, "e": "line\n"}));
        assert_eq!(parse(r#"{"a": ["b", true]}"#).unwrap(), json!({"a": ["b", true]}));
        assert_eq!(parse("").unwrap(), Value::Null);
        for bad in ["a: [", "{1: 2}", "a: *nobody", &"[".repeat(100)] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse(&format!("{}{}", "[".repeat(40), "]".repeat(40))).is_err());
    }
}
