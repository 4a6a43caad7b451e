//! Flame graphs: a frame is as wide as it was often seen, and stands on the one that called it.
//!
//! Written here rather than by a crate: the well-known one is under a licence that this project does
//! not take, and a graph without scripts is a few rectangles.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::stacks::{Frame, Origin, Stacks};

const WIDTH: f64 = 1200.0;
const ROW: usize = 18;
const TOP: usize = 44;
/// Frames narrower than this are left out.
const NARROWEST: f64 = 0.4;
/// Width of a letter, for the font in the style.
const LETTER: f64 = 6.7;

const STYLE: &str = "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#1b1b1b}\
.head{font:14px system-ui,sans-serif}.bg{fill:#fff}rect{stroke:#fff;stroke-width:.5}\
.own{fill:#f0a35e}.lib{fill:#9fc5a8}.kernel{fill:#9db8dd}.all{fill:#d0d0d0}\
@media(prefers-color-scheme:dark){text{fill:#f2f2f2}.bg{fill:#16181c}rect{stroke:#16181c}\
.own{fill:#a85b14}.lib{fill:#3f6f4b}.kernel{fill:#3b5f92}.all{fill:#4a4a4a}}";

/// The frames of all stacks that begin alike, as a tree.
#[derive(Default)]
struct Node<'a> {
    count: u64,
    children: BTreeMap<&'a Frame, Node<'a>>,
}

impl<'a> Node<'a> {
    fn add(&mut self, stack: &'a [Frame], count: u64) {
        self.count += count;
        if let Some((first, rest)) = stack.split_first() {
            self.children.entry(first).or_default().add(rest, count);
        }
    }

    /// Rows that are wide enough to be seen, of `share` pixels a sample.
    fn depth(&self, share: f64) -> usize {
        let seen = self.children.values();
        let seen = seen.filter(|child| child.count as f64 * share >= NARROWEST);
        1 + seen.map(|child| child.depth(share)).max().unwrap_or(0)
    }
}

/// The graph of `stacks` as SVG; `title` stands above it, and `nanos` is what all samples together
/// are worth per record.
pub(super) fn svg(title: &str, stacks: &Stacks, nanos: f64) -> String {
    let mut root = Node::default();
    for (stack, &count) in &stacks.counts {
        root.add(stack, count);
    }
    let total = root.count.max(1);
    let share = WIDTH / total as f64;
    let depth = root.depth(share);
    let height = TOP + depth * ROW + 8;
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>{STYLE}</style>\n<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"head\" x=\"8\" y=\"18\">{title}</text>\n\
         <text x=\"8\" y=\"36\">{} samples; orange: Kera, green: runtime and libraries, blue: \
         kernel; hover for names and nanoseconds per record</text>\n",
        root.count,
        title = escape(title),
    );
    let mut graph = Graph {
        out,
        bottom: TOP + (depth - 1) * ROW,
        share,
        nanos: nanos / total as f64,
    };
    graph.place("all", "all", root.count, 0.0, 0);
    graph.children(&root, 0.0, 1);
    graph.out + "</svg>\n"
}

struct Graph {
    out: String,
    bottom: usize,
    /// Pixels of a sample.
    share: f64,
    /// Nanoseconds per record of a sample.
    nanos: f64,
}

impl Graph {
    fn children(&mut self, node: &Node<'_>, mut x: f64, level: usize) {
        for (frame, child) in &node.children {
            let width = child.count as f64 * self.share;
            if width >= NARROWEST {
                let class = match frame.origin {
                    Origin::Own => "own",
                    Origin::Library => "lib",
                    Origin::Kernel => "kernel",
                };
                self.place(class, &frame.name, child.count, x, level);
                self.children(child, x, level + 1);
            }
            x += width;
        }
    }

    fn place(&mut self, class: &str, name: &str, count: u64, x: f64, level: usize) {
        let width = count as f64 * self.share;
        let y = self.bottom - level * ROW;
        let _ = write!(
            self.out,
            "<g><title>{}: {:.1} ns per record, {:.1} %</title>\
             <rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" rx=\"1\"/>",
            escape(name),
            count as f64 * self.nanos,
            width / WIDTH * 100.0,
            ROW - 1,
        );
        let letters = ((width - 6.0) / LETTER) as usize;
        if letters >= 3 {
            let _ = write!(
                self.out,
                "<text x=\"{:.1}\" y=\"{}\">{}</text>",
                x + 3.0,
                y + ROW - 6,
                escape(&shortened(name, letters)),
            );
        }
        self.out.push_str("</g>\n");
    }
}

/// At most `letters` of a name; of a path its end says more.
fn shortened(name: &str, letters: usize) -> String {
    let length = name.chars().count();
    if length <= letters {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(length + 1 - letters).collect();
    format!("\u{2026}{tail}")
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_wide_as_they_were_seen_and_stand_on_their_callers() {
        let text = "1000 inner<T>\n2000 kera_x::outer\n\n2000 kera_x::outer\n\n";
        let graph = svg("a & b", &Stacks::parse(text), 100.0);
        assert!(graph.contains(">a &amp; b</text>"));
        assert!(graph.contains("<title>kera_x::outer: 100.0 ns per record, 100.0 %</title>"));
        assert!(graph.contains("<title>inner&lt;T&gt;: 50.0 ns per record, 50.0 %</title>"));
        assert!(graph.contains("class=\"own\" x=\"0.0\" y=\"62\" width=\"1200.0\""));
        assert!(graph.contains("class=\"lib\" x=\"0.0\" y=\"44\" width=\"600.0\""));
        assert!(graph.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("a::b::c", 4), "\u{2026}::c");
        assert_eq!(shortened("abc", 3), "abc");
    }

    #[test]
    fn nothing_seen_is_no_panic() {
        assert!(svg("x", &Stacks::default(), 0.0).contains("0 samples"));
    }
}
