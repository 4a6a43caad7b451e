//! Enumerations whose values have a number in requests and in the store, and a name for people.

/// Makes an enum of values with their numbers, which never change, and names.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$value_doc])* $value = $number,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$value),*];

            /// Its number, in requests and in the store.
            pub fn number(self) -> u8 {
                self as u8
            }

            /// The value of a number; `None` for one of a newer build.
            pub fn of_number(number: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| u32::from(value.number()) == number)
            }

            /// As people write it.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)*
                }
            }

            /// What people wrote, in whatever case, `_` for `-` or left out.
            pub fn of_text(text: &str) -> Option<Self> {
                let plain = |text: &str| text.replace(['-', '_'], "").to_ascii_lowercase();
                let wanted = plain(text);
                Self::ALL.iter().copied().find(|value| plain(value.text()) == wanted)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}
pub(crate) use numbered;
