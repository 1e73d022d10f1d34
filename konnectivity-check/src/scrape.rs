//! Reads single samples of a scrape.

/// The sum over all samples of a family, whatever their labels; `None` if there is none.
pub fn sum(text: &str, name: &str) -> Option<f64> {
    let mut found = None;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        if !rest.starts_with([' ', '{']) {
            continue;
        }
        if let Some(value) = rest.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()) {
            found = Some(found.unwrap_or(0.0) + value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn families_are_distinguished_and_summed() {
        let text = "# TYPE a gauge\na 2\na_total 9\nb{x=\"1\"} 1\nb{x=\"2 3\"} 4.5\nc nonsense\n";
        assert_eq!((sum(text, "a"), sum(text, "b")), (Some(2.0), Some(5.5)));
        assert_eq!((sum(text, "c"), sum(text, "d"), sum(text, "")), (None, None, None));
    }
}
