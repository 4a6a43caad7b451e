//! The paths below `/api/v1`, and which of them is meant: what is in none of these tables is not served.

/// What a route is asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// GET, which shows something.
    Get,
    /// POST, which changes something.
    Post,
}

/// A path at `http.listen`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// What it is asked by.
    pub method: Method,
    /// The path; `NAME` and `NUMBER` stand for any.
    pub path: String,
}

/// Where all of it is.
pub(super) const PREFIX: &str = "/api/v1/";
/// Answers of the other paths as they change.
pub(super) const LIVE: &str = "/api/v1/live";

/// What can be looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown {
    Overview,
    Streams,
    Stream,
    Records,
    Groups,
    Group,
    Brokers,
    Broker,
    Settings,
}

/// Each path of something that can be looked at.
pub(super) const SHOWN: [(&str, Shown); 9] = [
    ("overview", Shown::Overview),
    ("streams", Shown::Streams),
    ("streams/NAME", Shown::Stream),
    ("streams/NAME/records", Shown::Records),
    ("groups", Shown::Groups),
    ("groups/NAME", Shown::Group),
    ("brokers", Shown::Brokers),
    ("brokers/NUMBER", Shown::Broker),
    ("settings", Shown::Settings),
];

/// What can be done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    CreateStream,
    AlterStream,
    TrimStream,
    DeleteStream,
    ResetGroup,
    DrainBroker,
}

/// Each path of something that can be done.
pub(super) const ACTS: [(&str, Act); 6] = [
    ("streams", Act::CreateStream),
    ("streams/NAME/alter", Act::AlterStream),
    ("streams/NAME/trim", Act::TrimStream),
    ("streams/NAME/delete", Act::DeleteStream),
    ("groups/NAME/reset", Act::ResetGroup),
    ("brokers/NUMBER/drain", Act::DrainBroker),
];

/// What the parts of a path mean, and the name in it; empty where the path has none.
pub(super) fn find<'a, T: Copy>(table: &[(&str, T)], parts: &[&'a str]) -> Option<(T, &'a str)> {
    let meant = |path: &str| {
        let pieces: Vec<_> = path.split('/').collect();
        let mut name = "";
        let fits = pieces.len() == parts.len()
            && pieces.iter().zip(parts).all(|(piece, part)| match *piece {
                "NAME" | "NUMBER" => {
                    name = part;
                    true
                }
                piece => piece == *part,
            });
        fits.then_some(name)
    };
    let mut found = table.iter();
    found.find_map(|(path, what)| Some((*what, meant(path)?)))
}

/// All of them.
pub(super) fn all() -> impl Iterator<Item = Route> {
    fn of<T>(method: Method, table: &[(&'static str, T)]) -> Vec<Route> {
        let path = |(path, _): &(&str, T)| format!("{PREFIX}{path}");
        let paths = table.iter().map(path);
        paths.map(|path| Route { method, path }).collect()
    }
    let live = Route {
        method: Method::Get,
        path: LIVE.to_owned(),
    };
    let shown = of(Method::Get, &SHOWN).into_iter();
    shown.chain([live]).chain(of(Method::Post, &ACTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_means_one_thing_and_names_it() {
        let found = |path: &str| {
            let parts: Vec<_> = path.split('/').collect();
            find(&SHOWN, &parts).map(|(what, name)| format!("{what:?} {name}"))
        };
        for (path, meant) in [
            ("streams", "Streams "),
            ("streams/streams", "Stream streams"),
            ("streams/a/records", "Records a"),
            ("brokers/7", "Broker 7"),
        ] {
            assert_eq!(found(path).as_deref(), Some(meant));
        }
        for path in [
            "",
            "stream",
            "streams/a/b",
            "streams/a/records/c",
            "overview/",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
