//! Booleans: `strconv.ParseBool`.

/// Parses one of the twelve spellings that Go accepts; `yes`, `on` and the empty text are not among them.
pub fn parse(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it must be true or false (or 1, 0, t, f, T, F, TRUE, FALSE, True, False)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(parse(text), Ok(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(parse(text), Ok(false), "{text}");
        }
        for text in ["", "yes", "no", "on", "tRUE", " true", "2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
