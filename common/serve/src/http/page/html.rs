//! Writes HTML. Markup is always a literal of the program; everything else is text, and is escaped.

use std::fmt::{Display, Write};

use status::words::is_deceptive;

/// A document, or a part of one.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Adds markup.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Adds text to a text node or to a quoted attribute value, from which it cannot escape.
    pub(super) fn text(&mut self, text: impl Display) -> &mut Self {
        // Writing to a String cannot fail.
        let _ = write!(Escaped(&mut self.0), "{text}");
        self
    }

    /// The markup.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&#34;"),
                '\'' => self.0.push_str("&#39;"),
                letter if is_deceptive(letter) => self.0.push('\u{fffd}'),
                letter => self.0.push(letter),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(text: &str) -> String {
        let mut html = Html::default();
        html.text(text);
        html.finish()
    }

    #[test]
    fn markup_becomes_text() {
        assert_eq!(escaped("<a href=\"x\" b='y'>&amp;"), "&lt;a href=&#34;x&#34; b=&#39;y&#39;&gt;&amp;amp;");
        assert_eq!(escaped("a\u{202e}b\n\0c"), "a\u{fffd}b\u{fffd}\u{fffd}c");
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_node(text in any::<String>()) {
            let escaped = escaped(&text);
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
            prop_assert!(!escaped.chars().any(is_deceptive));
            let mut shown = escaped;
            for (entity, letter) in
                [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&amp;", "&")]
            {
                shown = shown.replace(entity, letter);
            }
            let expected: String = text
                .chars()
                .map(|letter| if is_deceptive(letter) { '\u{fffd}' } else { letter })
                .collect();
            prop_assert_eq!(shown, expected);
        }
    }
}
