//! The name in a client's certificate.

use kera_rpc::stream::Stream;

use super::validity::{element, validity};
use crate::principal::Principal;

/// X.520's id-at-commonName, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// X.520 allows 64 characters.
const MOST_BYTES: usize = 256;

const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0C;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;

/// Who the peer of a connection is: the common name in its certificate.
pub(crate) fn principal_of(stream: &Stream) -> Principal {
    let certificate = stream.peer_certificate();
    let name = certificate.as_deref().and_then(common_name);
    name.map_or(Principal::Anonymous, |name| Principal::User(name.into()))
}

/// The common name of the subject of an X.509 certificate in DER. `None` unless there is exactly one, in
/// ASCII or UTF-8: of two names an attacker could choose the one that is read. `None` as well if it has
/// control characters, which would forge lines of a log, or spaces at an end, which nobody sees.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let (_, after_validity) = validity(certificate)?;
    let (_, mut names, _) = element(after_validity)?;
    let mut found = None;
    while !names.is_empty() {
        let (_, mut set, rest) = element(names)?;
        names = rest;
        while !set.is_empty() {
            let (_, attribute, rest) = element(set)?;
            set = rest;
            let (tag, kind, value) = element(attribute)?;
            if (tag, kind) != (OBJECT_IDENTIFIER, COMMON_NAME) {
                continue;
            }
            let (tag, text, _) = element(value)?;
            if found.replace((tag, text)).is_some() {
                return None;
            }
        }
    }
    let (tag, text) = found?;
    if !matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING) || text.len() > MOST_BYTES {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let is_clean = !text.is_empty() && text.trim() == text && !text.contains(char::is_control);
    is_clean.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, DnValue)]) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in names {
            let name = &mut params.distinguished_name;
            name.push(kind.clone(), value.clone());
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn the_common_name_is_read_wherever_it_stands() {
        let organization = (DnType::OrganizationName, utf8("Example"));
        let printable = DnValue::PrintableString("ann".try_into().unwrap());
        for name in [utf8("ann"), printable] {
            let name = (DnType::CommonName, name);
            for names in [
                vec![name.clone()],
                vec![name.clone(), organization.clone()],
                vec![organization.clone(), name],
            ] {
                let read = common_name(&certificate(&names));
                assert_eq!(read.as_deref(), Some("ann"), "{names:?}");
            }
        }
        let beyond_ascii = certificate(&[(DnType::CommonName, utf8("J\u{fc}rgen"))]);
        assert_eq!(common_name(&beyond_ascii).as_deref(), Some("J\u{fc}rgen"));
    }

    #[test]
    fn what_is_not_exactly_one_clean_name_is_none() {
        assert_eq!(common_name(&certificate(&[])), None);
        let organization = certificate(&[(DnType::OrganizationName, utf8("Example"))]);
        assert_eq!(common_name(&organization), None);
        // rcgen keeps one value of a kind; the identifier it is given is the same.
        let again = DnType::CustomDnType(vec![2, 5, 4, 3]);
        let two = certificate(&[(DnType::CommonName, utf8("ann")), (again, utf8("root"))]);
        assert_eq!(common_name(&two), None);
        let long = "x".repeat(MOST_BYTES + 1);
        for name in ["", " ", " ann", "ann ", "ann\nroot", "ann\0", long.as_str()] {
            let certificate = certificate(&[(DnType::CommonName, utf8(name))]);
            assert_eq!(common_name(&certificate), None, "{name:?}");
        }
        let universal = DnValue::BmpString("ann".try_into().unwrap());
        let universal = certificate(&[(DnType::CommonName, universal)]);
        assert_eq!(common_name(&universal), None);
    }

    #[test]
    fn a_certificate_cut_short_has_no_name() {
        let whole = certificate(&[(DnType::CommonName, utf8("ann"))]);
        for cut in 0..whole.len() {
            assert_eq!(common_name(&whole[..cut]), None, "{cut} bytes");
        }
        assert_eq!(common_name(b"not a certificate"), None);
    }
}
