//! Causes among the sources of an error.

use std::io;

/// The first cause of an error that is a `T`, if there is one.
pub(crate) fn cause_of<'a, T>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a T>
where
    T: std::error::Error + 'static,
{
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An error of I/O names what is behind the error in it as its source, and leaves that out.
        let inner = error.downcast_ref().and_then(io::Error::get_ref);
        let found = error.downcast_ref().or_else(|| inner?.downcast_ref());
        if found.is_some() {
            return found;
        }
        cause = error.source();
    }
    None
}
