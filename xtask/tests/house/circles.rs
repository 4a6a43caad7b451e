//! Which files of a crate import each other in a circle, read from their `use` declarations and paths.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, UseTree};

use kera_xtask::{Source, check, files};

/// No circle has more files than this: two or three that name each other are read as one. That a file names its
/// folder's `mod.rs`, or the crate's root, does not count.
const MOST: usize = 3;

/// A file of a crate.
#[derive(Default)]
struct Module {
    file: String,
    /// Names that it hands on from elsewhere: `pub use`, as written.
    handed_on: BTreeMap<String, Vec<String>>,
    /// Paths that it names, as written.
    named: Vec<Vec<String>>,
}

/// The modules of a crate by their paths from its root.
type Modules = BTreeMap<Vec<String>, Module>;

/// Reads the `use` declarations and paths of a file, without its tests.
#[derive(Default)]
struct Names {
    handed_on: BTreeMap<String, Vec<String>>,
    named: Vec<Vec<String>>,
}

impl Names {
    fn take(&mut self, tree: &UseTree, before: &mut Vec<String>, hands_on: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.take(&path.tree, before, hands_on);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take(tree, before, hands_on);
                }
            }
            UseTree::Glob(_) => self.named.push(before.clone()),
            UseTree::Name(name) => self.take_name(before, &name.ident, &name.ident, hands_on),
            UseTree::Rename(name) => self.take_name(before, &name.ident, &name.rename, hands_on),
        }
    }

    fn take_name(
        &mut self,
        before: &[String],
        name: &syn::Ident,
        here: &syn::Ident,
        hands_on: bool,
    ) {
        let mut path = before.to_vec();
        if name != "self" {
            path.push(name.to_string());
        }
        if hands_on {
            self.handed_on.insert(here.to_string(), path);
        } else {
            self.named.push(path);
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        list.is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string() == "test")
    })
}

impl<'a> Visit<'a> for Names {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        // Paths within an inline module begin elsewhere; outside of tests there are none.
        if item.content.is_none() || is_for_tests(&item.attrs) {
            return;
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        if !is_for_tests(&item.attrs) {
            let hands_on = !matches!(item.vis, syn::Visibility::Inherited);
            self.take(&item.tree, &mut Vec::new(), hands_on);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments = path.segments.iter().map(|part| part.ident.to_string());
        let segments: Vec<_> = segments.collect();
        if segments.len() > 1 {
            self.named.push(segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_item(&mut self, item: &'a Item) {
        if let Item::Fn(function) = item
            && is_for_tests(&function.attrs)
        {
            return;
        }
        visit::visit_item(self, item);
    }
}

/// The path of the module in `file`, which lies below `src/`: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn module_path(file: &str) -> Vec<String> {
    let name = file.strip_suffix(".rs").unwrap_or(file);
    let mut path: Vec<_> = name.split('/').map(str::to_owned).collect();
    if matches!(path.last().map(String::as_str), Some("mod")) || path == ["lib"] || path == ["main"]
    {
        path.pop();
    }
    path
}

/// The modules of one crate; the paths of `sources` begin with its folder.
fn modules(sources: &[&Source]) -> Modules {
    let mut modules = Modules::new();
    for source in sources {
        let Some((_, file)) = source.path.split_once("/src/") else {
            continue;
        };
        if file.starts_with("bin/") || file.ends_with("_tests.rs") || source.is_generated() {
            continue;
        }
        let parsed = syn::parse_file(&source.text);
        let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", source.path));
        let mut names = Names::default();
        names.visit_file(&parsed);
        let module = modules.entry(module_path(file)).or_default();
        module.file = file.to_owned();
        module.named.append(&mut names.named);
        module.handed_on.append(&mut names.handed_on);
    }
    modules
}

/// The module in which `path`, as written in module `at`, is defined; `None` if that is no module of the crate.
fn defined_in(
    modules: &Modules,
    at: &[String],
    path: &[String],
    depth: usize,
) -> Option<Vec<String>> {
    let mut found = at.to_vec();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            found.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                found.pop()?;
                rest = &rest[1..];
            }
        }
        first => {
            let mut child = found.clone();
            child.push(first.to_owned());
            if !modules.contains_key(&child) {
                return None;
            }
        }
    }
    while let Some((part, behind)) = rest.split_first() {
        let mut child = found.clone();
        child.push(part.clone());
        if !modules.contains_key(&child) {
            break;
        }
        found = child;
        rest = behind;
    }
    let module = modules.get(&found)?;
    let handed_on = rest.first().and_then(|name| module.handed_on.get(name));
    match handed_on {
        Some(origin) if depth < 8 => defined_in(modules, &found, origin, depth + 1).or(Some(found)),
        _ => Some(found),
    }
}

/// The circles of a crate: sets of files each of which imports every other, if not directly then over others.
fn circles(modules: &Modules) -> Vec<BTreeSet<String>> {
    let paths: Vec<_> = modules.keys().collect();
    let mut reaches: Vec<BTreeSet<usize>> = Vec::new();
    for (path, module) in modules {
        let imported = module
            .named
            .iter()
            .filter_map(|named| defined_in(modules, path, named, 0))
            // What a folder's files share stands in its `mod.rs`, which names them in turn.
            .filter(|found| !path.starts_with(found))
            .filter_map(|found| paths.iter().position(|path| **path == found));
        reaches.push(imported.collect());
    }
    loop {
        let mut grown = false;
        for at in 0..reaches.len() {
            let further: BTreeSet<usize> = reaches[at]
                .iter()
                .flat_map(|next| reaches[*next].iter().copied())
                .collect();
            let before = reaches[at].len();
            reaches[at].extend(further);
            grown |= reaches[at].len() > before;
        }
        if !grown {
            break;
        }
    }
    let mut found = BTreeSet::new();
    for at in 0..reaches.len() {
        let with = (0..reaches.len())
            .filter(|other| reaches[at].contains(other) && reaches[*other].contains(&at));
        let circle: BTreeSet<_> = with.map(|at| modules[paths[at]].file.clone()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// The crates of the workspace: folders with sources, each with its files.
fn crates(all: &[Source]) -> BTreeMap<&str, Vec<&Source>> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in all {
        if let Some((name, rest)) = source.path.split_once('/')
            && rest.starts_with("src/")
        {
            crates.entry(name).or_default().push(source);
        }
    }
    crates
}

#[test]
fn no_circle_of_imports_has_more_than_three_files() {
    let all = files(&[".rs"]);
    let mut broken = Vec::new();
    for (name, sources) in crates(&all) {
        let circles = circles(&modules(&sources));
        for circle in circles.iter().filter(|circle| circle.len() > MOST) {
            let files: Vec<_> = circle.iter().map(String::as_str).collect();
            broken.push(format!(
                "{name}: {} files import each other, at most {MOST} may: {}",
                files.len(),
                files.join(", ")
            ));
        }
    }
    check("files import each other in circles", broken);
}

#[test]
fn a_planted_circle_is_found_over_names_that_are_handed_on() {
    let source = |path: &str, text: &str| Source {
        path: format!("planted/src/{path}"),
        text: text.to_owned(),
    };
    let sources = [
        source("lib.rs", "mod a; mod b; mod c; pub use c::See;"),
        source("a.rs", "use crate::b::Bee; struct Ay;"),
        source("b/mod.rs", "mod deep; pub(crate) use deep::Bee;"),
        source("b/deep.rs", "pub struct Bee(crate::See);"),
        source(
            "c.rs",
            "pub struct See; fn f() { let _ = crate::a::Ay; } #[cfg(test)] mod tests { use super::*; }",
        ),
        source("d.rs", "use std::fmt; use crate::See;"),
    ];
    let found = circles(&modules(&sources.iter().collect::<Vec<_>>()));
    let circle = ["a.rs", "b/deep.rs", "c.rs"].map(str::to_owned);
    assert_eq!(found, [BTreeSet::from(circle)]);
}
