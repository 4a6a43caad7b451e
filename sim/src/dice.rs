//! Chance that is the same everywhere and for ever.

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall as `seed` says, for one `purpose`: what one of them is asked does not change the others.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(purpose.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    /// A number from `from` up to and with `to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True `of_1000` times in 1,000.
    pub fn chance(&mut self, of_1000: u64) -> bool {
        self.below(1000) < of_1000
    }

    /// One of `these`, which must not be empty.
    pub fn one<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.below(these.len() as u64) as usize]
    }
}
