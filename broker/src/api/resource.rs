//! What can be asked for: paths and their queries.

use axum::extract::Query;
use axum::http::Uri;
use kera_protocol::error::{ErrorCode, WireError};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::records;
use super::routes::{PREFIX, SHOWN, Shown, find};

/// Rows of a list, unless fewer or more are asked for.
const ROWS: usize = 50;
/// Most rows.
const MOST_ROWS: usize = 200;

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) enum Resource {
    Overview,
    Streams(ListQuery),
    Stream(String, ListQuery),
    Records(String, std::sync::Arc<records::Query>),
    Groups(ListQuery),
    Group(String, ListQuery),
    Brokers(ListQuery),
    Broker(u32),
    Settings,
}

/// Which rows of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    pub(super) offset: usize,
    limit: Option<usize>,
    #[serde(default)]
    filter: String,
    #[serde(default)]
    pub(super) sort: Sort,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sort {
    #[default]
    Name,
    Lag,
    Rate,
    Bytes,
}

impl ListQuery {
    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(ROWS)
    }

    /// Whether a name has what is looked for in it.
    pub(super) fn finds(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    fn checked(self) -> Result<Self, WireError> {
        let limit = self.limit();
        match (1..=MOST_ROWS).contains(&limit) {
            true => Ok(self),
            false => Err(invalid(format!(
                "limit is {limit}; 1 to {MOST_ROWS} rows can be asked for"
            ))),
        }
    }
}

pub(super) fn invalid(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

impl Resource {
    /// What a path and its query ask for.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] says what there is.
    pub(super) fn of(uri: &Uri) -> Result<Self, WireError> {
        let path = uri.path().strip_prefix(PREFIX).unwrap_or_default();
        let parts: Vec<_> = path.split('/').map(decoded).collect::<Result<_, _>>()?;
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let list = || query::<ListQuery>(uri).and_then(ListQuery::checked);
        let Some((shown, name)) = find(&SHOWN, &parts) else {
            return Err(invalid(format!(
                "there is no /api/v1/{path}; there are overview, streams, groups, brokers, settings and live, see docs/api.md"
            )));
        };
        let name = name.to_owned();
        Ok(match shown {
            Shown::Overview => Self::Overview,
            Shown::Streams => Self::Streams(list()?),
            Shown::Stream => Self::Stream(name, list()?),
            Shown::Records => Self::Records(name, query::<records::Query>(uri)?.into()),
            Shown::Groups => Self::Groups(list()?),
            Shown::Group => Self::Group(name, list()?),
            Shown::Brokers => Self::Brokers(list()?),
            Shown::Broker => {
                let id = name.parse();
                Self::Broker(id.map_err(|_| invalid("a broker is named by its number".to_owned()))?)
            }
            Shown::Settings => Self::Settings,
        })
    }
}

pub(super) fn decoded(part: &str) -> Result<String, WireError> {
    let decoded = percent_decode_str(part).decode_utf8();
    let decoded = decoded.map_err(|_| invalid(format!("`{part}` is not UTF-8")))?;
    Ok(decoded.into_owned())
}

fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, WireError> {
    let query = Query::<T>::try_from_uri(uri);
    query.map(|Query(query)| query).map_err(|error| {
        let text = error.body_text();
        let what = text
            .rsplit_once("query string: ")
            .map_or(&*text, |(_, what)| what);
        invalid(format!("the query is wrong: {what}; see docs/api.md"))
    })
}

/// Two that are equal have the same answer. Records are never kept, so they are equal to nothing.
impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.kept_as() == other.kept_as() && !matches!(self, Self::Records(..))
    }
}

impl Eq for Resource {}

impl std::hash::Hash for Resource {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.kept_as().hash(state);
    }
}

impl Resource {
    /// The answer is a part of a look at all brokers, and asks nobody else.
    pub(super) fn is_of_a_look(&self) -> bool {
        matches!(
            self,
            Self::Overview | Self::Streams(_) | Self::Groups(_) | Self::Brokers(_)
        )
    }

    fn kept_as(&self) -> (u8, &str, u32, Option<&ListQuery>) {
        match self {
            Self::Overview => (0, "", 0, None),
            Self::Streams(query) => (1, "", 0, Some(query)),
            Self::Stream(name, query) => (2, name, 0, Some(query)),
            Self::Records(name, _) => (3, name, 0, None),
            Self::Groups(query) => (4, "", 0, Some(query)),
            Self::Group(name, query) => (5, name, 0, Some(query)),
            Self::Brokers(query) => (6, "", 0, Some(query)),
            Self::Broker(id) => (7, "", *id, None),
            Self::Settings => (8, "", 0, None),
        }
    }
}
