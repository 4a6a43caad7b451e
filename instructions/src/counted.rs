//! The one function between whose entry and return instructions are counted.

/// Calls `work`. Callgrind counts from here on, and no more once this returns; it finds the function
/// by its path, so it must not be inlined, and no other function may have `counted` in its name.
#[inline(never)]
pub(crate) fn counted(work: &mut dyn FnMut()) {
    work();
}
