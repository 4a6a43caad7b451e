//! `ARCHITECTURE.md` stays short enough to be read, and keeps its figures.

use std::fs;

use kera_xtask::root;

/// Words between white space, as `wc -w` counts them: text, tables and figures. A link is one word.
const MOST_WORDS: usize = 4_500;

/// Lines of a drawing, at the least; a command is shorter.
const FIGURE_LINES: usize = 8;

/// The sections that have a figure.
const FIGURES: [&str; 4] = [
    "The house",
    "An append with three replicas",
    "The life of a group",
    "Failover",
];

/// The sections of `text` with a code block of at least [`FIGURE_LINES`] lines, by their headings.
fn figures(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    for section in text.split("\n## ").skip(1) {
        let heading = section.lines().next().unwrap_or_default();
        let mut blocks = section.split("```").skip(1).step_by(2);
        if blocks.any(|block| block.lines().count() > FIGURE_LINES) {
            out.push(heading);
        }
    }
    out
}

#[test]
fn the_architecture_is_short_and_has_its_figures() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let words = text.split_whitespace().count();
    assert!(
        words <= MOST_WORDS,
        "ARCHITECTURE.md has {words} words and may have {MOST_WORDS}: move details to docs/ or to rustdoc"
    );
    let found = figures(&text);
    for section in FIGURES {
        assert!(
            found.contains(&section),
            "section {section:?} of ARCHITECTURE.md has no figure; these have one: {found:?}"
        );
    }
}

#[test]
fn a_figure_is_a_code_block_of_some_lines_below_a_heading() {
    let drawing = "|\n".repeat(FIGURE_LINES);
    let text = format!("# T\n\n## A\n```\n{drawing}```\n\n## B\n```sh\nmake\n```\n\n## C\n|\n");
    assert_eq!(figures(&text), ["A"]);
}
