//! Tokens of an issuer, as a client gets one for each login.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_protocol::login::MAX_TOKEN_MESSAGE;
use tokio::sync::Mutex;

use crate::small_file::{self, Takes, on_thread};

/// Bytes of a message around its token, and some more.
const AROUND: usize = 64;
/// Most bytes of a token.
const MAX_TOKEN: usize = MAX_TOKEN_MESSAGE - AROUND;

/// What gives a token.
type Get = dyn Fn() -> io::Result<String> + Send + Sync;

/// Where tokens come from. Cheap to clone.
#[derive(Clone)]
pub(crate) struct TokenSource {
    get: Arc<Get>,
    /// One is got at a time: a source that hangs holds one thread.
    turn: Arc<Mutex<()>>,
}

impl TokenSource {
    pub(crate) fn new(get: impl Fn() -> io::Result<String> + Send + Sync + 'static) -> Self {
        Self {
            get: Arc::new(get),
            turn: Arc::default(),
        }
    }

    /// One whose tokens somebody else puts into a file.
    pub(crate) fn of_file(path: PathBuf) -> Self {
        Self::new(move || token_in_file(&path))
    }

    /// A token as the first message of OAUTHBEARER.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn message(&self) -> Result<Vec<u8>, String> {
        let token = self.token().await?;
        Ok(format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}").into_bytes())
    }

    async fn token(&self) -> Result<String, String> {
        let (turn, get) = (self.turn.clone().lock_owned().await, self.get.clone());
        let missing = |error: io::Error| format!("there is no token: {error}");
        // Not one of the runtime's threads: it would wait for that when it ends.
        let got = on_thread(move || {
            let _turn = turn;
            get()
        });
        let got = got.map_err(missing)?.await;
        let got = got.map_err(|_| "what gives tokens has panicked".to_owned())?;
        checked(&got.map_err(missing)?).map(str::to_owned)
    }
}

fn token_in_file(path: &Path) -> io::Result<String> {
    let read = small_file::read(path, MAX_TOKEN + 1, Takes::Files).and_then(|read| {
        String::from_utf8(read).map_err(|_| io::Error::other("it has something else than text"))
    });
    read.map_err(|error| {
        let name = path.display();
        io::Error::new(error.kind(), format!("cannot read {name}: {error}"))
    })
}

/// The token in a file, for requests that bring it themselves.
///
/// # Errors
/// Why there is none.
pub async fn token_of_file(path: PathBuf) -> Result<String, String> {
    TokenSource::of_file(path).token().await
}

fn checked(text: &str) -> Result<&str, String> {
    let token = text.trim();
    let is_token = !token.is_empty()
        && token.len() <= MAX_TOKEN
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    match is_token {
        true => Ok(token),
        // It may be half a token, or another secret: it is not shown.
        false => Err(format!(
            "there is no token: {} bytes that are none; a token has 1 to {MAX_TOKEN} letters, digits and signs",
            token.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_login_has_the_token_that_is_there_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let source = TokenSource::of_file(path.clone());
        let why = source.message().await.unwrap_err();
        assert!(
            why.contains("cannot read") && why.contains("token"),
            "{why}"
        );
        for token in ["a.b.c", "d.e.f"] {
            std::fs::write(&path, format!("{token}\n")).unwrap();
            let expected = format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}");
            assert_eq!(source.message().await.unwrap(), expected.as_bytes());
        }
        let long = "s".repeat(MAX_TOKEN + 1);
        for wrong in ["", " \n", "secret\u{1}auth=x", "secret word", &long] {
            std::fs::write(&path, wrong).unwrap();
            let why = source.message().await.unwrap_err();
            assert!(why.contains("bytes that are none"), "{why}");
            assert!(!why.contains("secret") && why.len() < 200, "{why}");
        }
        let longest = "s".repeat(MAX_TOKEN);
        std::fs::write(&path, format!("{longest}\n")).unwrap();
        assert!(source.message().await.unwrap().len() <= MAX_TOKEN_MESSAGE);
        let panics = TokenSource::new(|| panic!("as a test wants it"));
        let why = panics.message().await.unwrap_err();
        assert!(why.contains("panicked"), "{why}");
    }
}
