//! The page of errata: made from the guide itself, so that the two cannot differ.

use super::markdown;
use super::page;

/// What is wrong in the papers, and the commands that show it.
const TEXT: &str = include_str!("../../../../docs/errata.md");

/// The page.
pub(crate) fn page() -> String {
    let top = "<nav class=\"top\"><a href=\"index.html\">The figures</a></nav>\n";
    page::framed("Errata", &format!("{top}{}", markdown::render(TEXT)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The words of a command line up to a comment, a pipe or a redirection.
    pub(crate) fn words(line: &str) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let (mut word, mut quote, mut open) = (String::new(), None, false);
        for letter in line.chars() {
            match (letter, quote) {
                (letter, Some(end)) if letter == end => quote = None,
                ('\'' | '"', None) => (quote, open) = (Some(letter), true),
                ('#' | '>' | '|', None) if word.is_empty() && !open => return words,
                (' ', None) => {
                    if open || !word.is_empty() {
                        words.push(std::mem::take(&mut word));
                    }
                    open = false;
                }
                (letter, _) => word.push(letter),
            }
        }
        if open || !word.is_empty() {
            words.push(word);
        }
        words
    }

    /// Every command of ours in the text: in blocks after a `$`, and within lines as code.
    fn commands(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut fenced = false;
        let mut prose = String::new();
        for line in text.lines() {
            if line.starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                found.extend(line.strip_prefix("$ ").map(str::to_owned));
            } else {
                prose.push_str(line);
                prose.push(' ');
            }
        }
        found.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
        found.retain(|command| command.starts_with("conclave "));
        found
    }

    #[test]
    fn every_command_of_the_errata_can_be_given() {
        let commands = commands(TEXT);
        assert!(commands.len() > 40, "{commands:?}");
        for command in commands {
            let parsed = crate::cli::parses(&words(&command));
            assert_eq!(parsed, Ok(()), "{command}");
        }
        assert!(crate::cli::parses(&words("conclave quorum chekc 'tree(8)'")).is_err());
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let found = words("conclave quorum check 'file(a b)' \"\" --x=1   # why");
        assert_eq!(
            found,
            ["conclave", "quorum", "check", "file(a b)", "", "--x=1"]
        );
    }

    #[test]
    fn the_page_has_no_raw_marks_and_its_links_resolve() {
        let page = page();
        for raw in ["```", "|---", "](", "**"] {
            let outside = page
                .split("<pre>")
                .map(|part| part.split_once("</pre>").map_or(part, |(_, after)| after));
            for part in outside {
                assert!(!part.contains(raw), "{raw}");
            }
        }
        for part in page.split("href=\"#").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(page.contains(&format!("id=\"{name}\"")), "{name}");
        }
    }
}
