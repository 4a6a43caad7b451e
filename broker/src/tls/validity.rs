//! When a certificate ends. This and the [subject](super::subject) are all that is read of it here and not by the
//! TLS library.

/// The second since 1970 after which an X.509 certificate in DER is not valid any more. `None` if it is none.
pub(crate) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (validity, _) = validity(certificate)?;
    let (_, _, rest) = element(validity)?;
    let (tag, text, _) = element(rest)?;
    time(tag, text)
}

/// The validity of an X.509 certificate in DER, and the fields that follow it: the subject is the first.
pub(super) fn validity(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xA0;
    let (tag, certificate, _) = element(certificate)?;
    if tag != SEQUENCE {
        return None;
    }
    let (_, mut fields, _) = element(certificate)?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (_, validity, rest) = element(fields)?;
    Some((validity, rest))
}

/// The first element of DER: its tag, what it holds, and what follows.
pub(super) fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, der) = der.split_first()?;
    let (&first, der) = der.split_first()?;
    let (length, der) = match first {
        0..=0x7F => (usize::from(first), der),
        0x81..=0x84 => {
            let (bytes, der) = der.split_at_checked(usize::from(first & 0x7F))?;
            let length = bytes
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            (length, der)
        }
        _ => return None,
    };
    let (content, rest) = der.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// UTCTime (YYMMDDHHMMSSZ) or GeneralizedTime (YYYYMMDDHHMMSSZ) as RFC 5280 wants them.
fn time(tag: u8, text: &[u8]) -> Option<i64> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let year_digits = match tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };
    let (year, rest) = text.split_at_checked(year_digits)?;
    let year: i64 = year.parse().ok()?;
    let year = match tag {
        UTC_TIME if year < 50 => year + 2000,
        UTC_TIME => year + 1900,
        _ => year,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    let (hour, minute, second) = (part(4)?, part(6)?, part(8)?);
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days from 1 January 1970. The year is taken to begin in March, so that a leap day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = match month {
        ..=2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let before_month = (153 * month + 2) / 5;
    year * 365 + leap_days + before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read() {
        for (year, month, day, seconds) in [
            (1999, 12, 31, 946_598_400),
            (2024, 2, 29, 1_709_164_800),
            (2049, 12, 31, 2_524_521_600),
            // From 2050 on in the other form.
            (2050, 3, 1, 2_529_705_600),
            (4096, 1, 1, 67_090_118_400),
        ] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, month, day);
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(not_after(certificate.der()), Some(seconds), "{year}");
            for cut in 0..certificate.der().len() {
                assert_eq!(not_after(&certificate.der()[..cut]), None, "{cut} bytes");
            }
        }
        assert_eq!(not_after(b"not a certificate"), None);
    }
}
