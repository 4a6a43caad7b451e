//! Colours that read on a light page and on a dark one: nothing is painted behind a plot.

use plotters::style::RGBColor;

use crate::scenario::Contender;

/// Text, which a style within the file makes stronger where a viewer tells which page it prefers.
pub(super) const INK: RGBColor = RGBColor(0x6B, 0x74, 0x7F);
/// Lines across, drawn thinly.
pub(super) const GRID: RGBColor = RGBColor(0x80, 0x88, 0x90);

/// Contenders whose colour never changes, by name.
const KNOWN: [(&str, RGBColor); 4] = [
    ("kera-native", RGBColor(0x1A, 0x7F, 0x37)),
    ("kera", RGBColor(0x09, 0x69, 0xDA)),
    ("kafka", RGBColor(0xBC, 0x4C, 0x00)),
    ("nats", RGBColor(0x82, 0x50, 0xDF)),
];
/// For the others, in turn.
const SPARE: [RGBColor; 5] = [
    RGBColor(0xBF, 0x39, 0x89),
    RGBColor(0x9A, 0x67, 0x00),
    RGBColor(0x1B, 0x7C, 0x83),
    RGBColor(0xCF, 0x22, 0x2E),
    RGBColor(0x6E, 0x77, 0x81),
];

/// The colour of a contender; those without one of their own take spare ones in the order of `all`.
pub(super) fn colour(contender: Contender, all: &[Contender]) -> RGBColor {
    let known = |one: Contender| KNOWN.iter().find(|(name, _)| *name == one.name());
    if let Some((_, colour)) = known(contender) {
        return *colour;
    }
    let mut others = all.iter().filter(|one| known(**one).is_none());
    let turn = others.position(|one| *one == contender).unwrap_or(0);
    SPARE[turn % SPARE.len()]
}

/// The style that goes into the file. A rule wins over the attributes that the crate writes.
pub(super) const STYLE: &str = "<style>\n\
    text{font-family:system-ui,-apple-system,\"Segoe UI\",\"Noto Sans\",Helvetica,Arial,sans-serif}\n\
    @media (prefers-color-scheme:light){text{fill:#24292F}}\n\
    @media (prefers-color-scheme:dark){text{fill:#E6EDF3}}\n\
    </style>\n";

#[cfg(test)]
mod tests {
    use super::*;

    type Rgb = (u8, u8, u8);

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
    fn every_colour_stands_out_on_both_pages() {
        let (white, night) = ((0xFF, 0xFF, 0xFF), (0x0D, 0x11, 0x17));
        let known = KNOWN.iter().map(|(_, colour)| *colour);
        let all: Vec<_> = known.chain(SPARE).chain([INK]).collect();
        for colour in &all {
            let rgb = (colour.0, colour.1, colour.2);
            // What the guidelines ask of text on a light page, and of graphics on a dark one.
            assert!(contrast(rgb, white) >= 4.5, "{colour:?}");
            assert!(contrast(rgb, night) >= 3.0, "{colour:?}");
            assert_eq!(all.iter().filter(|one| *one == colour).count(), 1);
        }
    }

    #[test]
    fn contenders_have_colours_of_their_own() {
        let all = [Contender::Kafka, Contender::Kera, Contender::KeraNative];
        let of = |one| colour(one, &all);
        assert_ne!(of(all[0]), of(all[1]));
        assert_ne!(of(all[1]), of(all[2]));
    }
}
