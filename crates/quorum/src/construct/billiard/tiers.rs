//! Tiers: kinds of quorums on one board that all meet each other, from the cheapest on.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// One kind of quorum on a board. See [`Tiers`] for how they combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// A site's own billiard path.
    T0,
    /// An antipodal path of `q` cells: one per column (or row), between mirrored border cells.
    T1,
    /// A diagonal path of any length between mirrored border cells.
    T2,
    /// A diagonal path across the board together with a star path the other way. A star path may
    /// also step two cells along a row or column.
    T3,
    /// A full odd row with a full even column: `q - 1` sites.
    T3Prime,
    /// More than half of the votes, in a set that meets every quorum of the other enabled tiers.
    T4,
}

impl Tier {
    /// All tiers in the order in which they are tried.
    pub const ALL: [Self; 6] = [
        Self::T0,
        Self::T1,
        Self::T2,
        Self::T3,
        Self::T3Prime,
        Self::T4,
    ];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    fn name(self) -> &'static str {
        match self {
            Self::T0 => "T0",
            Self::T1 => "T1",
            Self::T2 => "T2",
            Self::T3 => "T3",
            Self::T3Prime => "T3'",
            Self::T4 => "T4",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Tier {
    type Err = TierError;

    fn from_str(text: &str) -> Result<Self, TierError> {
        let name = if text == "T3p" { "T3'" } else { text };
        Self::ALL
            .into_iter()
            .find(|tier| tier.name() == name)
            .ok_or_else(|| TierError::Unknown {
                name: text.to_owned(),
            })
    }
}

/// The enabled tiers, at least one. Any two quorums of any tiers share a site, so every choice
/// gives a coterie. All requesters must make the same choice: what T4 accepts depends on the other
/// tiers. The default is T1, T2 and T4.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tiers(u8);

impl Tiers {
    /// The set of these tiers, or `None` if there are none.
    pub fn of(tiers: impl IntoIterator<Item = Tier>) -> Option<Self> {
        let bits = tiers.into_iter().fold(0, |bits, tier| bits | tier.bit());
        (bits != 0).then_some(Self(bits))
    }

    /// The set of the tiers of these names: `T0`, `T1`, `T2`, `T3`, `T3'` (or `T3p`), `T4`.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, TierError> {
        let tiers: Vec<Tier> = names
            .into_iter()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Self::of(tiers).ok_or(TierError::None)
    }

    /// Whether the tier is enabled.
    pub fn contains(self, tier: Tier) -> bool {
        self.0 & tier.bit() != 0
    }

    /// The enabled tiers in the order in which they are tried.
    pub fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL
            .into_iter()
            .filter(move |tier| self.contains(*tier))
    }

    /// Whether only tiers of this list are enabled.
    pub(super) fn only(self, tiers: &[Tier]) -> bool {
        self.iter().all(|tier| tiers.contains(&tier))
    }
}

impl Default for Tiers {
    fn default() -> Self {
        Self(Tier::T1.bit() | Tier::T2.bit() | Tier::T4.bit())
    }
}

impl fmt::Display for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, tier) in self.iter().enumerate() {
            write!(f, "{}{tier}", if place > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tiers({self})")
    }
}

/// Why names do not make a set of tiers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TierError {
    /// There is no tier of that name.
    #[error("there is no tier '{name}': the tiers are T0, T1, T2, T3, T3' (or T3p) and T4")]
    Unknown {
        /// The name.
        name: String,
    },
    /// No tier was named.
    #[error("no tier is named: name at least one of T0, T1, T2, T3, T3' and T4")]
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_written() {
        let tiers = Tiers::parse(["T4", "T1", "T3p"]).unwrap();
        assert_eq!(tiers.to_string(), "T1,T3',T4");
        assert_eq!(Tiers::parse(["T3'"]), Tiers::parse(["T3p"]));
        assert_eq!(Tiers::default().to_string(), "T1,T2,T4");
        assert_eq!(Tiers::parse([]), Err(TierError::None));
        let error = Tiers::parse(["T1", "T5"]).unwrap_err();
        assert!(error.to_string().contains("'T5'"));
    }
}
