//! Pieces of HTML. All text from elsewhere goes through [`escape`].

use std::fmt::Write;

/// Escapes text for content or a quoted attribute. Control characters, which HTML cannot represent,
/// become the replacement character.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(' '),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A table; the first cell of a row is its heading, cells in parentheses are faint, and columns of
/// numbers are right-aligned.
pub(super) fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let mut html = "<div class=\"card\"><table>".to_owned();
    let numeric =
        |column: usize| rows.iter().all(|row| row.get(column).is_none_or(|c| is_number(c)));
    let class = |column: usize| if numeric(column) { " class=\"n\"" } else { "" };
    if !header.is_empty() {
        let cells = header.iter().enumerate();
        let cells =
            cells.map(|(i, cell)| format!("<th scope=\"col\"{}>{}</th>", class(i), escape(cell)));
        push!(html, "<thead><tr>{}</tr></thead>", cells.collect::<String>());
    }
    html.push_str("<tbody>");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let text = escape(cell);
            match (column, cell.starts_with('(')) {
                (0, _) => push!(html, "<th scope=\"row\">{text}</th>"),
                (_, true) => push!(html, "<td class=\"n thin\">{text}</td>"),
                (_, false) => push!(html, "<td{}>{text}</td>", class(column)),
            }
        }
        html.push_str("</tr>");
    }
    html + "</tbody></table></div>"
}

fn is_number(cell: &str) -> bool {
    let begins = cell.starts_with(|c: char| c.is_ascii_digit() || "(-+".contains(c));
    begins && !cell.trim_start_matches(['-', '(']).contains(' ')
}

pub(super) fn facts(pairs: &[(String, String)]) -> String {
    let mut html = "<div class=\"card\"><dl class=\"facts\">".to_owned();
    for (name, value) in pairs {
        push!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    html + "</dl></div>"
}

pub(super) fn section(title: &str, lead: &str, body: &str) -> String {
    let lead = match lead {
        "" => String::new(),
        text => format!("<p class=\"lead\">{}</p>", escape(text)),
    };
    format!("<section><h2>{}</h2>{lead}{body}</section>\n", escape(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_means_something_to_html_is_left() {
        assert_eq!(
            escape("<img src=x onerror=\"a('b')\"> & \u{1b}[31m"),
            "&lt;img src=x onerror=&quot;a(&#39;b&#39;)&quot;&gt; &amp; \u{fffd}[31m"
        );
    }

    #[test]
    fn numbers_go_to_the_right_and_thin_ones_are_faint() {
        let row = |cells: &[&str]| cells.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        let html = table(&row(&["name", "p99"]), &[row(&["a<b", "1.5"]), row(&["c", "(2.5)"])]);
        assert!(html.contains("<th scope=\"row\">a&lt;b</th><td class=\"n\">1.5</td>"), "{html}");
        assert!(html.contains("<td class=\"n thin\">(2.5)</td>"), "{html}");
    }
}
