//! `kera man`: the manual pages, made from what the commands say of themselves and from the table of settings.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use kera_broker::config::{KEYS, Key, SECTIONS};

use crate::failure::{Failure, Outcome};
use crate::output::print_bytes;

/// The page of the configuration file, without its section.
const SETTINGS: &str = "kera.toml";
/// What stands at the foot of each page.
const SOURCE: &str = concat!("kera ", env!("CARGO_PKG_VERSION"));

/// Arguments of `kera man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera man stream create | man -l -
  kera man kera.toml | man -l -
  kera man --all ~/.local/share/man

Without a command it prints the page kera(1). kera.toml is the page of the configuration file. --all writes all pages, \
each into the folder of its section: man1, man5.")]
pub(crate) struct ManArgs {
    /// The command, as it is typed, or kera.toml
    #[arg(conflicts_with = "all")]
    command: Vec<String>,
    /// Write all pages below this directory
    #[arg(long, value_name = "DIR")]
    all: Option<PathBuf>,
}

/// A manual page.
struct Page {
    /// Such as `kera-stream-create`.
    name: String,
    section: &'static str,
    text: Vec<u8>,
}

/// Prints a page, or writes all of them.
pub(crate) fn run<C: CommandFactory>(args: &ManArgs) -> Outcome {
    let pages = pages(C::command())?;
    if let Some(folder) = &args.all {
        for page in &pages {
            write(page, folder).map_err(|error| {
                Failure::message(format!("{}: cannot be written: {error}", folder.display()))
            })?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let words = args.command.join("-");
    let name = match words.as_str() {
        SETTINGS => words,
        "" => "kera".to_owned(),
        _ => format!("kera-{words}"),
    };
    let Some(page) = pages.iter().find(|page| page.name == name) else {
        return Err(Failure::Usage(format!(
            "there is no page \"{}\"; `kera help` names the commands",
            args.command.join(" ")
        )));
    };
    print_bytes(&page.text)?;
    Ok(ExitCode::SUCCESS)
}

fn write(page: &Page, folder: &Path) -> io::Result<()> {
    let folder = folder.join(format!("man{}", page.section));
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("{}.{}", page.name, page.section));
    fs::write(file, &page.text)
}

fn pages(root: Command) -> io::Result<Vec<Page>> {
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut pages = vec![Page {
        name: SETTINGS.to_owned(),
        section: "5",
        text: settings()?,
    }];
    collect(&root, None, &mut pages)?;
    Ok(pages)
}

fn collect(command: &Command, above: Option<&str>, pages: &mut Vec<Page>) -> io::Result<()> {
    let name = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_owned();
    for inner in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        collect(inner, Some(&name), pages)?;
    }
    let text = page(command, &name, above)?;
    pages.push(Page {
        name,
        section: "1",
        text,
    });
    Ok(())
}

/// The page of one command.
fn page(command: &Command, name: &str, above: Option<&str>) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(SOURCE)
        .manual("Kera");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let mut usage = Roff::new();
    usage.control("SH", ["SYNOPSIS"]);
    let forms = command.clone().render_usage().to_string();
    let forms = forms.trim_start_matches("Usage:").lines().map(str::trim);
    for (at, form) in forms.filter(|form| !form.is_empty()).enumerate() {
        if at > 0 {
            usage.control("br", []);
        }
        usage.text([bold(form)]);
    }
    usage.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let help = command
        .get_after_long_help()
        .or_else(|| command.get_after_help());
    if let Some(help) = help {
        after(&help.to_string()).to_writer(&mut text)?;
    }
    let mut also = Roff::new();
    also.control("SH", ["SEE ALSO"]);
    let above = above.map_or_else(String::new, |above| format!("{above}(1), "));
    also.text([roman(format!("{above}{SETTINGS}(5)"))]);
    also.to_writer(&mut text)?;
    Ok(text)
}

/// What stands behind the options: examples as they are typed, all else as paragraphs.
fn after(help: &str) -> Roff {
    let mut roff = Roff::new();
    let mut typed = false;
    let mut headed = false;
    for line in help.lines() {
        if let Some(example) = line.strip_prefix("  ") {
            if !typed {
                roff.control("nf", []);
                typed = true;
            }
            roff.text([roman(example)]);
            continue;
        }
        if typed {
            roff.control("fi", []);
            typed = false;
        }
        match line.strip_suffix(':').filter(|head| head.len() < 20) {
            Some(head) => {
                roff.control("SH", [head.to_uppercase().as_str()]);
                headed = true;
            }
            None if line.trim().is_empty() => {
                if headed {
                    roff.control("SH", ["NOTES"]);
                    headed = false;
                } else {
                    roff.control("PP", []);
                }
            }
            None => {
                roff.text([roman(line)]);
            }
        }
    }
    if typed {
        roff.control("fi", []);
    }
    roff
}

/// The page of the configuration file: every setting.
fn settings() -> io::Result<Vec<u8>> {
    let mut roff = Roff::new();
    roff.control("TH", ["KERA.TOML", "5", "", SOURCE, "Kera"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{SETTINGS} - configuration of a broker"))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([
        bold("kera serve --config "),
        italic("FILE"),
        roman(
            " reads a file of TOML. Each setting can also be given by a flag, which comes first, or by an environment \
             variable, which comes before the file. Sizes have units (64KiB, 1GiB; a plain number is bytes), durations \
             as well (500ms, 1h30m). Unknown settings are refused. ",
        ),
        bold("kera config check"),
        roman(" checks a file, "),
        bold("kera config print"),
        roman(" prints every value and where it comes from."),
    ]);
    let mut section = None;
    for key in KEYS {
        if section != Some(key.section) {
            section = Some(key.section);
            let head = match key.section {
                "" => "AT THE TOP OF THE FILE".to_owned(),
                name => format!("[{name}]"),
            };
            roff.control("SH", [head.as_str()]);
            if let Some((_, doc)) = SECTIONS.iter().find(|(name, _)| *name == key.section) {
                let doc: Vec<&str> = doc.iter().map(|line| line.trim()).collect();
                roff.text([roman(doc.join(" "))]);
            }
        }
        setting(key, &mut roff);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("kera-serve(1), kera-config-check(1)")]);
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(text)
}

fn setting(key: &Key, roff: &mut Roff) {
    roff.control("TP", []);
    roff.text([bold(key.name)]);
    roff.text([roman(key.paragraph())]);
    roff.control("br", []);
    let mut value = format!("Value: {}", key.form.replace('`', ""));
    let limits = key.limits_text();
    if !limits.is_empty() {
        value.push_str(&format!(", {limits}"));
    }
    value.push_str(&match key.name {
        "data_dir" => ".".to_owned(),
        _ => format!("; default {}.", key.default),
    });
    roff.text([roman(value)]);
    roff.control("br", []);
    roff.text([roman(format!(
        "Variable: {}, flag: --{}",
        key.env(),
        key.flag()
    ))]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let text = after("Examples:\n  kera a\n  kera 'b'\n\nMore of it.\nAnd more.").to_roff();
        let lines: Vec<&str> = text.lines().collect();
        let begin = lines.iter().position(|line| *line == ".SH EXAMPLES");
        let begin = begin.expect("a heading");
        assert_eq!(lines[begin + 1], ".nf");
        assert!(lines[begin + 3].starts_with("kera "), "{text}");
        assert_eq!(lines[begin + 4], ".fi");
        assert_eq!(lines[begin + 5], ".SH NOTES");
    }
}
