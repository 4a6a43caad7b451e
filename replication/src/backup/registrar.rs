//! How a network card is let at a copy's buffers, and how it is kept away again.
//!
//! A transport whose card writes into memory by itself gives the store a [`Registrar`]. From then on
//! every buffer that a primary opens is registered before its key is told, and taken from the card
//! before the store relies on nobody writing there: before a seal's length is read, before a copy is
//! closed, completed by somebody else, or its memory given back.

use std::fmt::Debug;
use std::io;

use super::mapping::Window;
use crate::ids::{BrokerId, BufferKey};

/// Registers buffers with a network card.
pub trait Registrar: Send + Sync + Debug {
    /// Lets the connection of `primary`, and nobody else's, write `window`. The key is what the
    /// primary names the buffer by; no other registered buffer has it.
    ///
    /// # Errors
    /// The card's or the system's, such as too little lockable memory; the text says what to do.
    fn register(
        &self,
        primary: BrokerId,
        window: Window,
    ) -> io::Result<(BufferKey, Box<dyn Registration>)>;

    /// Destroys the connections of `primaries`, so that nothing they have under way lands any more,
    /// then runs `then`, and only after it accepts connections of them again.
    fn disconnect(&self, primaries: &[BrokerId], then: &mut dyn FnMut());
}

/// A buffer that a card may write. Dropping it ends that, too, with nobody to hear of a failure.
pub trait Registration: Send + Sync + Debug {
    /// Ends it: once this has returned without an error no write lands any more. Ended already, it
    /// does nothing.
    ///
    /// # Errors
    /// The card's; writes may still land.
    fn end(&mut self) -> io::Result<()>;
}
