//! Wraps and shortens text to a terminal's width.

/// `text` broken at spaces to `width` columns; the first line begins with `first`, the others are indented as far, or
/// by 4 if that leaves no room.
pub fn wrapped(first: &str, text: &str, width: usize) -> String {
    let (mut indent, mut out, mut line, mut lead) =
        (first.chars().count(), String::new(), String::new(), first.to_string());
    if indent + 20 > width && !text.is_empty() {
        out = format!("{}\n", first.trim_end());
        indent = 4;
        lead = " ".repeat(indent);
    }
    let room = width.saturating_sub(indent).max(20);
    let mut end = |line: &mut String, lead: &mut String| {
        out.push_str(format!("{lead}{line}").trim_end());
        out.push('\n');
        line.clear();
        *lead = " ".repeat(indent);
    };
    for word in text.split(' ').filter(|w| !w.is_empty()) {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            end(&mut line, &mut lead);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    end(&mut line, &mut lead);
    out
}

/// Shortens text to `width` characters and keeps its end, which distinguishes paths best.
pub fn tail(text: &str, width: usize) -> String {
    let n = text.chars().count();
    if n <= width {
        return text.to_string();
    }
    format!("..{}", text.chars().skip(n + 2 - width.max(3)).collect::<String>())
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_stay_within_the_width() {
        let text = super::wrapped("  not with x: ", &"a word ".repeat(30), 60);
        assert!(text.lines().all(|l| l.chars().count() <= 60), "{text}");
        assert_eq!(super::tail("model.encoder.layer.0.attention", 12), "...attention");
        assert_eq!(super::wrapped("a: ", "", 60), "a:\n");
    }
}
