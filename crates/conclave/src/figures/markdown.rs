//! The little of Markdown that our own pages use, as HTML: headings, paragraphs, lists, tables,
//! fenced code, and code, bold, italics and links within a line.

use std::fmt::Write as _;

/// Text that is safe inside HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// The name of a heading in links, as GitHub makes it.
pub(crate) fn slug(heading: &str) -> String {
    let mut out = String::new();
    for letter in heading.chars() {
        match letter {
            ' ' | '-' => out.push('-'),
            letter if letter.is_alphanumeric() || letter == '_' => {
                out.extend(letter.to_lowercase());
            }
            _ => {}
        }
    }
    out
}

/// A page as HTML, without its frame.
pub(crate) fn render(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let taken = if line.trim().is_empty() {
            1
        } else if line.starts_with("```") {
            code(&lines[at..], &mut out)
        } else if line.starts_with('#') {
            heading(line, &mut out);
            1
        } else if line.starts_with('|') {
            table(&lines[at..], &mut out)
        } else if line.starts_with("- ") {
            list(&lines[at..], &mut out)
        } else {
            paragraph(&lines[at..], &mut out)
        };
        at += taken;
    }
    out
}

fn heading(line: &str, out: &mut String) {
    let level = line.chars().take_while(|letter| *letter == '#').count();
    let text = line[level..].trim();
    let plain = text.replace('`', "");
    let _ = writeln!(
        out,
        "<h{level} id=\"{}\">{}</h{level}>",
        slug(&plain),
        inline(text)
    );
}

/// A fenced block; gives how many lines it takes.
fn code(lines: &[&str], out: &mut String) -> usize {
    let inside = lines[1..]
        .iter()
        .take_while(|line| !line.starts_with("```"));
    let inside: Vec<String> = inside.map(|line| escape(line)).collect();
    let _ = writeln!(out, "<pre><code>{}</code></pre>", inside.join("\n"));
    (inside.len() + 2).min(lines.len())
}

fn table(lines: &[&str], out: &mut String) -> usize {
    let rows: Vec<&&str> = lines
        .iter()
        .take_while(|line| line.starts_with('|'))
        .collect();
    out.push_str("<div class=\"wide\"><table>\n");
    for (place, row) in rows.iter().enumerate() {
        let cells = cells(row);
        if cells
            .iter()
            .all(|cell| cell.trim_matches(['-', ':']).is_empty())
        {
            continue;
        }
        let tag = if place == 0 { "th" } else { "td" };
        out.push_str("<tr>");
        for cell in cells {
            let _ = write!(out, "<{tag}>{}</{tag}>", inline(&cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
    rows.len()
}

/// The cells of a row; a bar inside code does not end one.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|');
    let row = row.strip_suffix('|').unwrap_or(row);
    let mut cells = vec![String::new()];
    let mut within = false;
    for letter in row.chars() {
        within ^= letter == '`';
        if letter == '|' && !within {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(letter);
        }
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

fn list(lines: &[&str], out: &mut String) -> usize {
    let lines: Vec<&&str> = lines
        .iter()
        .take_while(|line| line.starts_with("- ") || line.starts_with("  "))
        .collect();
    let mut items: Vec<String> = Vec::new();
    for line in &lines {
        match (line.strip_prefix("- "), items.last_mut()) {
            (None, Some(item)) => {
                item.push(' ');
                item.push_str(line.trim());
            }
            (found, _) => items.push(found.unwrap_or(line).to_owned()),
        }
    }
    out.push_str("<ul>\n");
    for item in items {
        let _ = writeln!(out, "<li>{}</li>", inline(&item));
    }
    out.push_str("</ul>\n");
    lines.len()
}

fn paragraph(lines: &[&str], out: &mut String) -> usize {
    let ends = |line: &str| {
        line.trim().is_empty()
            || ["```", "#", "|", "- "]
                .iter()
                .any(|start| line.starts_with(start))
    };
    let count = lines.iter().take_while(|line| !ends(line)).count().max(1);
    let _ = writeln!(out, "<p>{}</p>", inline(&lines[..count].join(" ")));
    count
}

/// Code, bold, italics and links within a line. Links to other files become plain text, for the
/// page stands alone.
pub(crate) fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let taken = code_span(rest, &mut out)
            .or_else(|| around(rest, "**", "strong", &mut out))
            .or_else(|| around(rest, "*", "em", &mut out))
            .or_else(|| link(rest, &mut out));
        let taken = taken.unwrap_or_else(|| {
            out.push_str(&escape(&letter.to_string()));
            letter.len_utf8()
        });
        rest = &rest[taken..];
    }
    out
}

fn code_span(rest: &str, out: &mut String) -> Option<usize> {
    let inside = rest.strip_prefix('`')?.split_once('`')?.0;
    let _ = write!(out, "<code>{}</code>", escape(inside));
    Some(inside.len() + 2)
}

fn around(rest: &str, mark: &str, tag: &str, out: &mut String) -> Option<usize> {
    let inside = rest.strip_prefix(mark)?.split_once(mark)?.0;
    if inside.is_empty() || inside.starts_with(' ') || inside.ends_with(' ') {
        return None;
    }
    let _ = write!(out, "<{tag}>{}</{tag}>", inline(inside));
    Some(inside.len() + 2 * mark.len())
}

fn link(rest: &str, out: &mut String) -> Option<usize> {
    let (name, after) = rest.strip_prefix('[')?.split_once("](")?;
    if name.contains('[') {
        return None;
    }
    let target = after.split_once(')')?.0;
    if target.starts_with('#') {
        let _ = write!(out, "<a href=\"{}\">{}</a>", escape(target), inline(name));
    } else {
        out.push_str(&inline(name));
    }
    Some(name.len() + target.len() + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_rendered() {
        let text = "# A `b` c\n\ntwo\nlines with **bold** and *it* and `a<b`.\n\n- one\n  more\n\
                    - two\n\n| x | `a|b` |\n|---|---|\n| 1 | [up](#a-b-c) |\n\n```\n$ a < b\n```\n\
                    [other](other.md) [GM] 2 * 3 * 4";
        let html = render(text);
        for part in [
            "<h1 id=\"a-b-c\">A <code>b</code> c</h1>",
            "<p>two lines with <strong>bold</strong> and <em>it</em> and <code>a&lt;b</code>.</p>",
            "<li>one more</li>\n<li>two</li>",
            "<tr><th>x</th><th><code>a|b</code></th></tr>\n<tr><td>1</td>",
            "<a href=\"#a-b-c\">up</a>",
            "<pre><code>$ a &lt; b</code></pre>",
            "<p>other [GM] 2 * 3 * 4</p>",
        ] {
            assert!(html.contains(part), "{part}\n{html}");
        }
    }

    #[test]
    fn unfinished_marks_stay_as_they_are() {
        for text in ["`a", "**a", "*a", "[a", "[a](b", "```", "|", "#", "- "] {
            assert!(!render(text).is_empty(), "{text}");
        }
        assert_eq!(inline("`a *b"), "`a *b");
    }
}
