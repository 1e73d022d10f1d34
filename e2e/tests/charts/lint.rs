//! `helm lint --strict`, and a comparison of the schema with the values.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::helm::{CHARTS, all_cases, helm, utf8};
use crate::yaml;

#[test]
fn every_case_passes_the_strict_lint() -> Result<()> {
    for (chart, case) in all_cases()? {
        let said = helm(&["lint", "--strict", utf8(&chart.folder())?, "--values", utf8(&chart.case(&case))?])
            .with_context(|| format!("{} with {case}", chart.name()))?;
        ensure!(said.contains("1 chart(s) linted, 0 chart(s) failed"), "{case}: {said}");
    }
    Ok(())
}

/// A value that is missing in the schema could not be set; one that is only in the schema would have no effect.
#[test]
fn schema_and_values_name_the_same_things() -> Result<()> {
    for chart in CHARTS {
        let values = yaml::document(&std::fs::read_to_string(chart.folder().join("values.yaml"))?)?;
        let schema: Value =
            serde_json::from_slice(&std::fs::read(chart.folder().join("values.schema.json"))?)?;
        compare(&schema, &schema, &values, chart.name())?;
    }
    Ok(())
}

fn compare(root: &Value, schema: &Value, values: &Value, path: &str) -> Result<()> {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).context("a broken $ref")?,
        None => schema,
    };
    let (Some(known), Some(map)) = (schema["properties"].as_object(), values.as_object()) else {
        return Ok(());
    };
    // A parent's globals are for all its charts.
    let shared = path.ends_with(".global");
    ensure!(shared || schema["additionalProperties"] == false, "{path} takes anything");
    // Kubernetes' own fields that are empty by default are only in the schema.
    let foreign = ["resources", "issuerRef", "liveness", "readiness", "startup"];
    let last = path.rsplit('.').next().unwrap_or_default();
    for (key, value) in map {
        let inner = known.get(key).with_context(|| format!("{path}.{key} is not in the schema"))?;
        compare(root, inner, value, &format!("{path}.{key}"))?;
        let group = value.is_object() || value.is_array() || last == "global" || foreign.contains(&last);
        let required = schema["required"].as_array().is_some_and(|all| all.iter().any(|name| name == key));
        let nullable = inner["type"].as_array().is_some_and(|types| types.iter().any(|one| one == "null"));
        ensure!(group || required || nullable, "{path}.{key} may be null, which no template expects");
    }
    for key in known.keys().filter(|key| !foreign.contains(&key.as_str()) && !foreign.contains(&last)) {
        ensure!(map.contains_key(key), "{path}.{key} is in the schema only");
    }
    Ok(())
}
