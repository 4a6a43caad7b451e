//! Colours that read on a light page and on a dark one.
//!
//! Nothing is painted behind a plot. It is drawn in colours that can be read on either page; a style
//! within the file has viewers that tell which of the two they prefer show stronger ones.

use plotters::style::{Color, RGBAColor, RGBColor};

use crate::scenario::Contender;

type Rgb = (u8, u8, u8);

/// A colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour {
    /// What is drawn; no two colours share it.
    either: Rgb,
    /// What stands for it on a light page, and on a dark one.
    light: Rgb,
    dark: Rgb,
}

impl Colour {
    /// One that is fit for a light page and does on a dark one, where another is better.
    const fn new(either: Rgb, dark: Rgb) -> Self {
        Self {
            either,
            light: either,
            dark,
        }
    }

    /// What is drawn.
    pub(super) fn rgb(self) -> RGBColor {
        let (red, green, blue) = self.either;
        RGBColor(red, green, blue)
    }
}

/// Text.
pub(super) const INK: Colour = Colour {
    either: (0x6B, 0x74, 0x7F),
    light: (0x24, 0x29, 0x2F),
    dark: (0xE6, 0xED, 0xF3),
};
/// What may be overlooked: captions and axes.
pub(super) const FAINT: Colour = Colour {
    either: (0x6C, 0x75, 0x80),
    light: (0x57, 0x60, 0x6A),
    dark: (0x9D, 0xA7, 0xB3),
};

/// Lines across: so thin a grey that it needs no other.
pub(super) fn grid() -> RGBAColor {
    RGBColor(0x80, 0x88, 0x90).mix(0.35)
}

/// Contenders whose colour never changes, by name.
const KNOWN: [(&str, Colour); 4] = [
    (
        "kera-native",
        Colour::new((0x1A, 0x7F, 0x37), (0x3F, 0xB9, 0x50)),
    ),
    ("kera", Colour::new((0x09, 0x69, 0xDA), (0x58, 0xA6, 0xFF))),
    ("kafka", Colour::new((0xBC, 0x4C, 0x00), (0xF0, 0x88, 0x3E))),
    ("nats", Colour::new((0x82, 0x50, 0xDF), (0xBC, 0x8C, 0xFF))),
];
/// For the others, in turn.
const SPARE: [Colour; 5] = [
    Colour::new((0xBF, 0x39, 0x89), (0xF7, 0x78, 0xBA)),
    Colour::new((0x9A, 0x67, 0x00), (0xD2, 0x99, 0x22)),
    Colour::new((0x1B, 0x7C, 0x83), (0x39, 0xC5, 0xCF)),
    Colour::new((0xCF, 0x22, 0x2E), (0xFF, 0x7B, 0x72)),
    Colour::new((0x6E, 0x77, 0x81), (0xB1, 0xBA, 0xC4)),
];

/// The colour of a contender; those without one of their own take spare ones in the order of `all`.
pub(super) fn colour(contender: Contender, all: &[Contender]) -> Colour {
    let known = |one: Contender| KNOWN.iter().find(|(name, _)| *name == one.name());
    if let Some((_, colour)) = known(contender) {
        return *colour;
    }
    let mut others = all.iter().filter(|one| known(**one).is_none());
    let turn = others.position(|one| *one == contender).unwrap_or(0);
    SPARE[turn % SPARE.len()]
}

/// All colours that have a name.
fn all() -> impl Iterator<Item = Colour> {
    let known = KNOWN.into_iter().map(|(_, colour)| colour);
    [INK, FAINT].into_iter().chain(known).chain(SPARE)
}

/// The style that goes into the file. A rule wins over the attributes that the crate writes.
pub(super) fn style() -> String {
    let hex = |(red, green, blue): Rgb| format!("#{red:02X}{green:02X}{blue:02X}");
    let mut out = "<style>\ntext{font-family:system-ui,-apple-system,\"Segoe UI\",\"Noto Sans\",Helvetica,Arial,sans-serif}\n".to_owned();
    for page in ["light", "dark"] {
        let shown = |one: Colour| if page == "dark" { one.dark } else { one.light };
        out.push_str(&format!("@media (prefers-color-scheme:{page}){{\n"));
        for colour in all().filter(|one| shown(*one) != one.either) {
            let (from, to) = (hex(colour.either), hex(shown(colour)));
            out.push_str(&format!(
                "[fill=\"{from}\"]{{fill:{to}}}[stroke=\"{from}\"]{{stroke:{to}}}\n"
            ));
        }
        out.push_str("}\n");
    }
    out.push_str("</style>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance as the accessibility guidelines (WCAG 2, 1.4.11) define it.
    fn luminance((red, green, blue): Rgb) -> f64 {
        let part = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue)
    }

    fn contrast(one: Rgb, other: Rgb) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn every_colour_stands_out_on_its_page() {
        let (white, night) = ((0xFF, 0xFF, 0xFF), (0x0D, 0x11, 0x17));
        for colour in all() {
            for (ink, page, least) in [
                (colour.light, white, 4.5),
                (colour.dark, night, 4.5),
                (colour.either, white, 4.5),
                // What the guidelines ask of graphics.
                (colour.either, night, 3.0),
            ] {
                let found = contrast(ink, page);
                assert!(found >= least, "{colour:?} on {page:?}: {found}");
            }
            let namesakes = all().filter(|one| one.either == colour.either);
            assert_eq!(namesakes.count(), 1, "{colour:?}");
        }
    }

    #[test]
    fn contenders_have_colours_of_their_own() {
        let all = [Contender::Kafka, Contender::Kera, Contender::KeraNative];
        let of = |one| colour(one, &all);
        assert_ne!(of(all[0]), of(all[1]));
        assert_ne!(of(all[1]), of(all[2]));
        for page in ["light", "dark"] {
            assert!(style().contains(&format!("prefers-color-scheme:{page}")));
        }
    }
}
