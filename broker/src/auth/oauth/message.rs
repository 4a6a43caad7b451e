//! What a client of OAUTHBEARER sends: RFC 7628, `n,a=USER,^Aauth=Bearer TOKEN^A^A`.

use std::fmt;

use kera_protocol::login::MAX_TOKEN_MESSAGE;

/// What ends a field.
const END: char = '\u{1}';

/// A client's message.
#[derive(PartialEq, Eq)]
pub struct TokenMessage<'a> {
    /// As whom it wants to act, if it says so.
    pub acts_as: Option<&'a str>,
    /// What shall prove that.
    pub token: &'a str,
}

impl fmt::Debug for TokenMessage<'_> {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenMessage")
            .field("acts_as", &self.acts_as)
            .finish_non_exhaustive()
    }
}

impl<'a> TokenMessage<'a> {
    /// Reads it; `None` if it is none.
    pub fn read(message: &'a [u8]) -> Option<Self> {
        if message.len() > MAX_TOKEN_MESSAGE {
            return None;
        }
        let text = std::str::from_utf8(message).ok()?;
        let (head, fields) = text.split_once(END)?;
        let mut head = head.split(',');
        // There is no binding to the channel, whether the client could have it or not.
        let (Some("n" | "y"), Some(acts_as), Some(""), None) =
            (head.next(), head.next(), head.next(), head.next())
        else {
            return None;
        };
        let acts_as = match acts_as {
            "" => None,
            named => Some(named.strip_prefix("a=").filter(|name| !name.is_empty())?),
        };
        // Each field has its end, and the message one more.
        let fields = fields.strip_suffix(END)?.strip_suffix(END)?;
        let mut token = None;
        for field in fields.split(END) {
            let (name, value) = field.split_once('=')?;
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                return None;
            }
            if name == "auth" {
                let (scheme, value) = value.split_once(' ')?;
                let is_bearer = scheme.eq_ignore_ascii_case("bearer");
                if !is_bearer || token.replace(value.trim_matches(' ')).is_some() {
                    return None;
                }
            }
        }
        let token = token.filter(|token| !token.is_empty())?;
        Some(Self { acts_as, token })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_those_of_the_document() {
        let read = |text: &'static str| TokenMessage::read(text.as_bytes());
        let plain = read("n,,\u{1}auth=Bearer a.b.c\u{1}\u{1}").unwrap();
        assert_eq!((plain.acts_as, plain.token), (None, "a.b.c"));
        let full = read("n,a=ann,\u{1}host=h\u{1}port=1\u{1}auth=bearer a.b.c\u{1}\u{1}").unwrap();
        assert_eq!((full.acts_as, full.token), (Some("ann"), "a.b.c"));
        for wrong in [
            "",
            "\u{1}",
            "n,,",
            "n,,\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a.b.c",
            "n,,\u{1}auth=Bearer a.b.c\u{1}",
            "n,,\u{1}auth=Bearer \u{1}\u{1}",
            "n,,\u{1}auth=Basic a.b.c\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}auth=Bearer b\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}=x\u{1}\u{1}",
            "n,,\u{1}host=h\u{1}\u{1}",
            "n,a=,\u{1}auth=Bearer a\u{1}\u{1}",
            "n,ann,\u{1}auth=Bearer a\u{1}\u{1}",
            "n,,x\u{1}auth=Bearer a\u{1}\u{1}",
            "p=tls-unique,,\u{1}auth=Bearer a\u{1}\u{1}",
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        assert_eq!(TokenMessage::read(b"n,,\x01auth=Bearer \xff\x01\x01"), None);
        let long = format!(
            "n,,\u{1}auth=Bearer {}\u{1}\u{1}",
            "a".repeat(MAX_TOKEN_MESSAGE)
        );
        assert_eq!(TokenMessage::read(long.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(
            parts in prop::collection::vec(prop::sample::select(vec![
                "n", "y", ",", "a=", "auth", "=", "Bearer", " ", "\u{1}", "x", "é", ".",
            ]), 0..40),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let text: String = parts.concat();
            if let Some(message) = TokenMessage::read(text.as_bytes()) {
                let is_whole = !message.token.is_empty() && !message.token.contains(END);
                prop_assert!(is_whole);
            }
            let _ = TokenMessage::read(&bytes);
        }
    }
}
