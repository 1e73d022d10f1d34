//! The API's objects, as far as they are used, and the origin of a list. Unused fields of a lease are kept and sent
//! back.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::time::{Moment, lenient};

/// `metadata` of an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Unique in its namespace.
    pub name: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Changes with each write; opaque.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A `coordination.k8s.io/v1` Lease.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lease {
    /// `coordination.k8s.io/v1`.
    pub api_version: String,
    /// `Lease`.
    pub kind: String,
    /// Name, labels, version.
    pub metadata: Metadata,
    /// The holder and the times.
    #[serde(deserialize_with = "or_default")]
    pub spec: LeaseSpec,
}

/// `spec` of a lease.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// The holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// Seconds from the renewal to the expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i64>,
    /// When the holder took it.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub acquire_time: Option<Moment>,
    /// When the holder last renewed it.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub renew_time: Option<Moment>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Lease {
    /// A lease that does not exist yet.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            metadata: Metadata { name: name.into(), namespace: namespace.into(), ..Metadata::default() },
            spec: LeaseSpec::default(),
        }
    }
}

/// A list of leases.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LeaseList {
    /// The list's own version.
    pub metadata: Metadata,
    /// The leases.
    #[serde(deserialize_with = "or_default")]
    pub items: Vec<Lease>,
    /// The answer took 2 s or more: the API was stalled and has delayed renewals too, so the list says nothing about a
    /// lease's age.
    #[serde(skip)]
    pub slow: bool,
}

/// The API's verdict on a token (`authentication.k8s.io/v1`, `status` of a TokenReview).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenReview {
    /// Whether the token is valid.
    pub authenticated: bool,
    /// The token's user.
    #[serde(deserialize_with = "or_default")]
    pub user: User,
    /// The requested audiences for which the token is valid.
    #[serde(deserialize_with = "or_default")]
    pub audiences: Vec<String>,
    /// Why the token could not be checked.
    pub error: String,
}

/// The user of a token.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct User {
    /// `system:serviceaccount:NAMESPACE:NAME` for a service account.
    pub username: String,
    /// Extra attributes: for a token that is bound to a pod, its node and pod.
    #[serde(deserialize_with = "or_default")]
    pub extra: BTreeMap<String, Option<Vec<String>>>,
}

impl User {
    /// The value of an extra attribute, if it has exactly one.
    pub fn extra(&self, key: &str) -> Option<&str> {
        match self.extra.get(key)?.as_deref() {
            Some([only]) => Some(only),
            _ => None,
        }
    }
}

/// The API's answer instead of an object (`meta/v1` Status).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// One word, `NotFound` for instance.
    pub reason: String,
    /// A sentence for humans.
    pub message: String,
}

/// Go writes an empty list or map as `null`.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_lease_fields_survive_an_update() {
        let text = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","namespace":"n",
            "resourceVersion":"7","labels":{"k":"v"},"uid":"u","annotations":{"x":"y"}},
            "spec":{"holderIdentity":"h","leaseDurationSeconds":30,"renewTime":"2026-01-01T00:00:00.000000Z",
            "leaseTransitions":3}}"#;
        let lease: Lease = serde_json::from_str(text).unwrap();
        assert_eq!(lease.metadata.resource_version, "7");
        assert_eq!(lease.spec.lease_duration_seconds, Some(30));
        let (there, back): (Value, Value) =
            (serde_json::from_str(text).unwrap(), serde_json::to_value(&lease).unwrap());
        assert_eq!(there, back);
    }

    #[test]
    fn nulls_gaps_and_bad_times_spoil_no_list() {
        let text = r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a","labels":null},
            "spec":{"renewTime":"yesterday","acquireTime":null,"leaseDurationSeconds":null}},{"spec":null},{}]}"#;
        let list: LeaseList = serde_json::from_str(text).unwrap();
        assert_eq!(list.items.len(), 3);
        assert_eq!(list.items[0].spec, LeaseSpec::default());
        assert!(serde_json::from_str::<LeaseList>(r#"{"items":null}"#).unwrap().items.is_empty());
    }

    #[test]
    fn a_further_fact_counts_only_alone() {
        let user: User =
            serde_json::from_str(r#"{"extra":{"one":["a"],"two":["a","b"],"none":[],"null":null}}"#).unwrap();
        let values = ["one", "two", "none", "null"].map(|key| user.extra(key));
        assert_eq!(values, [Some("a"), None, None, None]);
        assert_eq!(serde_json::from_str::<User>(r#"{"extra":null}"#).unwrap(), User::default());
    }
}
