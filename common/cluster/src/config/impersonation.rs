//! The user that a kubeconfig's user impersonates, as client-go's headers.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

/// The characters that stay unescaped in a header name; `%` is escaped, so that escapes are unambiguous. Source:
/// client-go's `headerKeyEscape`.
const LEGAL: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// The fields of a kubeconfig's user.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Impersonation {
    #[serde(rename = "as")]
    user: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl Impersonation {
    /// The headers; none if no user is named.
    ///
    /// # Errors
    /// The fault, and the fix.
    pub(super) fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (uid, groups) = (given(&self.as_uid), self.as_groups.iter().flatten());
        let extra = self.as_user_extra.iter().flatten();
        let Some(user) = given(&self.user) else {
            let alone = uid.is_some() || groups.count() > 0 || extra.count() > 0;
            return if alone { Err(ALONE.to_owned()) } else { Ok(Vec::new()) };
        };
        let mut headers = vec![header("as", "impersonate-user", &user)?];
        if let Some(uid) = uid {
            headers.push(header("as-uid", "impersonate-uid", &uid)?);
        }
        for group in groups {
            headers.push(header("as-groups", "impersonate-group", group)?);
        }
        for (key, values) in extra {
            let name = format!("impersonate-extra-{}", utf8_percent_encode(key, LEGAL));
            for value in values.iter().flatten() {
                headers.push(header("as-user-extra", &name, value)?);
            }
        }
        Ok(headers)
    }
}

const ALONE: &str = "the user has as-uid, as-groups or as-user-extra and no as: name the user to act as";

fn header(field: &str, name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    // Header names are case-insensitive.
    let name =
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("a key of {field} is too long"))?;
    let value = HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| format!("{field} has a control character, which no header may have"))?;
    Ok((name, value))
}
