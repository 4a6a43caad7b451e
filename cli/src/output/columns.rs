//! How many columns of a terminal a text takes. Wide letters, as of Chinese, take two, and those that combine with the one
//! before them none.

/// Columns that a text takes.
pub(crate) fn columns_of(text: &str) -> usize {
    console::measure_text_width(text)
}

fn of_letter(letter: char) -> usize {
    columns_of(letter.encode_utf8(&mut [0; 4]))
}

/// The text's beginning, within so many columns.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if columns_of(text) <= most {
        return text.to_owned();
    }
    let mut room = most.saturating_sub(1);
    let fits = |letter: &char| {
        let needed = of_letter(*letter);
        let fits = needed <= room;
        room = room.saturating_sub(needed);
        fits
    };
    let kept = text.chars().take_while(fits);
    kept.chain(std::iter::once('…').take(most)).collect()
}

/// The text in parts of at most so many columns; a part has one letter at least.
pub(super) fn parts(text: &str, room: usize) -> Vec<String> {
    let (mut parts, mut taken) = (Vec::<String>::new(), 0);
    for letter in text.chars() {
        let needed = of_letter(letter);
        match parts.last_mut() {
            Some(part) if taken + needed <= room => part.push(letter),
            _ => {
                parts.push(letter.to_string());
                taken = 0;
            }
        }
        taken += needed;
    }
    parts
}

/// The text with blanks up to so many columns: before it, or behind it.
pub(crate) fn padded(text: &str, room: usize, is_number: bool) -> String {
    let blanks = " ".repeat(room.saturating_sub(columns_of(text)));
    match is_number {
        true => blanks + text,
        false => text.to_owned() + &blanks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_letters_take_two_columns_and_others_none() {
        assert_eq!(
            ["abc", "日本", "e\u{301}", ""].map(columns_of),
            [3, 4, 1, 0]
        );
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!([cut("日本語", 5), cut("日本語", 4)], ["日本…", "日…"]);
        assert_eq!([cut("日本語", 1), cut("日本語", 0)], ["…", ""]);
        assert_eq!(parts("日本語x", 3), ["日", "本", "語x"]);
        assert_eq!(parts("日本", 1), ["日", "本"]);
        assert_eq!(padded("日本", 6, false), "日本  ");
        assert_eq!(padded("12", 4, true), "  12");
    }
}
