//! The head of a request: which API, which version, whose.

use kafka_protocol::messages::ApiKey;
use kera_broker::quotas::MOST_OF_A_CLIENT_ID;

use super::reader::{ReadError, Reader};
use crate::apis;
use crate::versions;

/// Bytes of a request's length, which comes before it.
pub const LENGTH_BYTES: usize = 4;

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// Number of its API.
    pub api_key: i16,
    /// Version of the API.
    pub api_version: i16,
    /// The client's number for it, repeated in the reply.
    pub correlation: i32,
    /// The client's name for itself.
    pub client_id: Option<&'a str>,
    /// Where the body begins.
    pub body_at: usize,
}

/// Why a request's head is refused; the connection ends, as with Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// It cannot be read.
    #[error("the head of the request cannot be read: {0}")]
    Malformed(#[from] ReadError),
    /// The API is not supported.
    #[error("api {0} is not supported")]
    UnknownApi(i16),
    /// The version is not supported.
    #[error("api {0} is not supported in version {1}")]
    UnknownVersion(i16, i16),
}

impl<'a> RequestHead<'a> {
    /// Reads the head at the start of a request, length excluded. The body of an ApiVersions request
    /// of an unknown version is not looked at: [`Self::body_at`] is meaningless then.
    ///
    /// # Errors
    /// [`HeadError`].
    pub fn parse(request: &'a [u8]) -> Result<Self, HeadError> {
        let mut reader = Reader::new(request, false);
        let mut head = Self {
            api_key: reader.i16()?,
            api_version: reader.i16()?,
            correlation: reader.i32()?,
            client_id: None,
            body_at: 0,
        };
        let (key, version) = (head.api_key, head.api_version);
        if !apis::serves(key, version) {
            return match apis::find(key) {
                // The answer to this one tells the client what there is.
                Some(_) if key == versions::KEY => Ok(head),
                Some(_) => Err(HeadError::UnknownVersion(key, version)),
                None => Err(HeadError::UnknownApi(key)),
            };
        }
        let api = ApiKey::try_from(key).map_err(|()| HeadError::UnknownApi(key))?;
        // The client's id has its old form in every version, so that ApiVersions can be read.
        head.client_id = reader.nullable_string()?;
        let mut rest = Reader::new(
            &request[reader.at()..],
            api.request_header_version(version) >= 2,
        );
        rest.tagged_fields()?;
        head.body_at = reader.at() + rest.at();
        Ok(head)
    }
}

/// What tells how a Produce or Fetch request is metered, as soon as so much of it has arrived: the number of its API, and
/// of its client's name for itself as much as counts. Fewer bytes are needed than are ever read ahead, however long the
/// head is. Of another API the name may be none.
pub fn metered_by(request: &[u8]) -> Option<(i16, &str)> {
    let mut reader = Reader::new(request, false);
    let key = reader.i16().ok()?;
    let (_version, _correlation) = (reader.i16().ok()?, reader.i32().ok()?);
    let length = usize::try_from(reader.i16().ok()?).unwrap_or(0);
    let name = &request[reader.at()..];
    let name = name.get(..length.min(MOST_OF_A_CLIENT_ID))?;
    let valid = name.utf8_chunks().next();
    Some((key, valid.map_or("", |chunk| chunk.valid())))
}

/// The requests of which all has arrived, their lengths excluded.
pub fn whole_requests(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = input;
    std::iter::from_fn(move || {
        let (field, behind) = rest.split_first_chunk::<LENGTH_BYTES>()?;
        let length = usize::try_from(i32::from_be_bytes(*field)).ok()?;
        let (request, behind) = behind.split_at_checked(length)?;
        rest = behind;
        Some(request)
    })
}

/// True if structures of this API and version end with tagged fields.
pub fn is_flexible(api: ApiKey, version: i16) -> bool {
    api.request_header_version(version) >= 2
}
