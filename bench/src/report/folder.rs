//! A folder of results, with the plots beside them and the document that shows both.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{document, heading, plot, section, summary};
use crate::results::Results;

/// Results, in the order in which a document has them if it has none of them yet.
pub(super) struct Folder {
    results: Vec<(PathBuf, Results)>,
    /// Folders that were named as such: their plots are all of these results.
    whole: Vec<PathBuf>,
}

/// What a document and the folders beside it are to hold.
struct Wanted {
    document: String,
    plots: BTreeMap<PathBuf, String>,
}

/// Makes a document's sections and the plots anew from all results in `folders`.
pub(crate) fn rebuild(folders: &[PathBuf], document: &Path) -> Result<()> {
    Folder::read(folders)?.write(document)
}

impl Folder {
    /// Reads files, and all results in folders.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self> {
        let (mut results, mut whole) = (Vec::new(), Vec::new());
        for path in paths {
            if !path.is_dir() {
                results.push((path.clone(), Results::read(path)?));
                continue;
            }
            whole.push(path.clone());
            for path in files(path, "json")? {
                // Other measurements may lie beside them.
                let text = fs::read_to_string(&path)?;
                if Results::is_one(&text) {
                    results.push((path.clone(), Results::read(&path)?));
                }
            }
        }
        ensure!(!results.is_empty(), "there are no results");
        for (turn, (path, one)) in results.iter().enumerate() {
            let namesake = results[..turn]
                .iter()
                .find(|(_, other)| other.title == one.title);
            ensure!(
                namesake.is_none(),
                "{} has the title of another file, {}; `kera-bench report --merge` makes one of two",
                path.display(),
                one.title
            );
        }
        Ok(Self { results, whole })
    }

    /// Every section, on standard output.
    pub(super) fn print(&self) -> Result<()> {
        for (_, results) in &self.results {
            print!("{}", super::render(results));
        }
        Ok(())
    }

    /// Writes the document's sections and all plots.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let wanted = self.wanted(path)?;
        for (path, svg) in &wanted.plots {
            fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        }
        fs::write(path, wanted.document).with_context(|| format!("cannot write {}", path.display()))
    }

    /// What is not as the results give it, in words.
    pub(super) fn differences(&self, path: &Path) -> Result<Vec<String>> {
        let wanted = self.wanted(path)?;
        let mut broken = Vec::new();
        if fs::read_to_string(path)? != wanted.document {
            broken.push(format!(
                "{} differs within its generated sections",
                path.display()
            ));
        }
        for (path, svg) in &wanted.plots {
            match fs::read_to_string(path) {
                Ok(text) if text == *svg => {}
                Ok(_) => broken.push(format!("{} differs", path.display())),
                Err(_) => broken.push(format!("{} is not there", path.display())),
            }
        }
        for folder in &self.whole {
            for path in files(folder, "svg")? {
                if !wanted.plots.contains_key(&path) {
                    broken.push(format!("{} is of no results; remove it", path.display()));
                }
            }
        }
        for plot in wanted.plots.keys() {
            let link = format!("]({})", link(path, plot));
            if !wanted.document.contains(&link) {
                broken.push(format!("{} is not in {}", plot.display(), path.display()));
            }
        }
        Ok(broken)
    }

    /// True if another session of these, begun later, has something to draw under that name: plots
    /// may move from one file of scenarios to another.
    fn drawn_of_a_later_session(&self, results: &Results, name: &str) -> bool {
        self.results.iter().any(|(_, other)| {
            let mut plots = other.plots.iter().filter(|plot| plot.name == name);
            (&other.started, &other.title) > (&results.started, &results.title)
                && plots.any(|plot| plot::draw(other, plot).is_ok())
        })
    }

    fn wanted(&self, path: &Path) -> Result<Wanted> {
        let mut text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut plots = BTreeMap::new();
        let mut top = String::new();
        for (json, results) in &self.results {
            let mut pictures: Vec<(String, String)> = Vec::new();
            for wanted in &results.plots {
                if self.drawn_of_a_later_session(results, &wanted.name) {
                    continue;
                }
                // A session of fewer cases has fewer plots; the others are as they should be.
                let svg = match plot::draw(results, wanted) {
                    Ok(svg) => svg,
                    Err(error) => {
                        eprintln!("{}: NO PLOT: {error:#}", json.display());
                        continue;
                    }
                };
                let file = json.with_file_name(format!("{}.svg", wanted.name));
                let picture = format!(
                    "![{}]({})\n\n*{}*\n\n",
                    wanted.title,
                    link(path, &file),
                    wanted.caption
                );
                plots.insert(file, svg);
                if wanted.name == document::SUMMARY && document::has(&text, document::SUMMARY) {
                    top = picture;
                } else {
                    pictures.push((wanted.scenario.clone(), picture));
                }
            }
            let of_scenario = |scenario: &str| {
                let ours = pictures.iter().filter(|(name, _)| name == scenario);
                ours.map(|(_, picture)| picture.as_str()).collect()
            };
            let json = link(path, json);
            let section = format!(
                "{}\nEvery run, with configurations, client CPU, memory and bytes written: [{json}]({json}).\n",
                section(results, &of_scenario)
            );
            text = document::replace(&text, &results.title, &section)
                .with_context(|| format!("in {}", path.display()))?;
        }
        if document::has(&text, document::SUMMARY) {
            let mut sessions: Vec<&Results> = self.results.iter().map(|(_, one)| one).collect();
            // In the order of the document.
            sessions.sort_by_key(|one| text.find(&format!("## {}\n", heading(one))));
            let summary = format!("{top}{}", summary::render(&sessions));
            text = document::replace(&text, document::SUMMARY, &summary)?;
        }
        Ok(Wanted {
            document: text,
            plots,
        })
    }
}

/// The files of a folder with that ending, in order of name.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(ending)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A file as the document links to it: relative, if it lies below its folder.
fn link(document: &Path, file: &Path) -> String {
    let folder = document.parent().unwrap_or(Path::new(""));
    let file = file.strip_prefix(folder).unwrap_or(file);
    file.display().to_string()
}
