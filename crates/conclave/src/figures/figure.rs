//! What a figure is: where it stands, what it claims, how it is drawn and how it is judged.

use std::fmt;

use super::table::Table;

/// The papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paper {
    Multilevel,
    Billiard,
    Groups,
    Backoff,
}

impl Paper {
    pub(crate) const ALL: [Self; 4] = [
        Self::Multilevel,
        Self::Billiard,
        Self::Groups,
        Self::Backoff,
    ];

    /// The word for it on the command line and in file names.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Multilevel => "multilevel",
            Self::Billiard => "billiard",
            Self::Groups => "groups",
            Self::Backoff => "backoff",
        }
    }

    /// Its heading on the page.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Multilevel => "Hierarchies of clusters",
            Self::Billiard => "Billiard quorums",
            Self::Groups => "Group mutual exclusion",
            Self::Backoff => "Leases with backoff",
        }
    }

    /// Who wrote what.
    pub(crate) fn citation(self) -> &'static str {
        match self {
            Self::Multilevel => {
                "Rahman, Akbar: A Permission based Multilevel Parallel Solution for Distributed \
                 Mutual Exclusion. 2011."
            }
            Self::Billiard => {
                "Agrawal, Eğecioğlu, El Abbadi: Billiard Quorums on the Grid. Information \
                 Processing Letters 64, 1997."
            }
            Self::Groups => {
                "Joung: Quorum-Based Algorithms for Group Mutual Exclusion. IEEE Transactions on \
                 Parallel and Distributed Systems 14, 2003."
            }
            Self::Backoff => {
                "Chockler, Malkhi, Reiter: Backoff Protocols for Distributed Mutual Exclusion and \
                 Ordering. ICDCS 2001."
            }
        }
    }

    /// Figures of the paper that show no result, and what stands for them here.
    pub(crate) fn left_out(self) -> &'static str {
        match self {
            Self::Multilevel => {
                "Figures 2 and 6 are sketches of who speaks to whom and show no result."
            }
            Self::Billiard => {
                "Figures 1 to 3 motivate the board with paths in a plain square; Figure 6 is the \
                 program that lists a quorum; below, ours are held against it."
            }
            Self::Groups => {
                "Figures 3 and 4 define the numbering of the squares (an erratum), Figures 5 to 8 \
                 are the programs. The paper draws no results: the figures below show what it \
                 states in words."
            }
            Self::Backoff => {
                "Figures 1 to 3 are programs. The paper draws no results: the figures below show \
                 what it states in words."
            }
        }
    }
}

/// Whether a claim held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Held,
    InPart,
    NotHeld,
    /// There is no claim: the figure is ours.
    Ours,
}

impl Verdict {
    /// One word for style sheets and JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::InPart => "in-part",
            Self::NotHeld => "not-held",
            Self::Ours => "ours",
        }
    }

    /// Held if all parts are true, in part if some are.
    pub(crate) fn of(parts: &[bool]) -> Self {
        let held = parts.iter().filter(|part| **part).count();
        if held == parts.len() {
            Self::Held
        } else if held == 0 {
            Self::NotHeld
        } else {
            Self::InPart
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Held => "held",
            Self::InPart => "held in part",
            Self::NotHeld => "not held",
            Self::Ours => "beyond the paper",
        })
    }
}

/// What was found, and what that says of the claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// What was measured, in numbers.
    pub(crate) found: String,
    /// Where and why we differ, or what to know; may be empty.
    pub(crate) why: String,
}

impl Judgement {
    pub(crate) fn new(verdict: Verdict, found: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            verdict,
            found: found.into(),
            why: why.into(),
        }
    }
}

/// A figure: what it claims, and how its table is drawn and judged.
pub(crate) struct Figure {
    /// The name of its files.
    pub(crate) id: &'static str,
    pub(crate) paper: Paper,
    /// Where it stands in the paper.
    pub(crate) place: &'static str,
    pub(crate) title: &'static str,
    /// What the paper says it shows.
    pub(crate) claim: &'static str,
    /// The columns of its table.
    pub(crate) columns: &'static [&'static str],
    pub(crate) draw: fn(&Table) -> String,
    pub(crate) judge: fn(&Table) -> Judgement,
}

/// A figure with its table.
pub(crate) struct Made {
    pub(crate) figure: &'static Figure,
    pub(crate) table: Table,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_as_good_as_its_parts() {
        assert_eq!(Verdict::of(&[true, true]), Verdict::Held);
        assert_eq!(Verdict::of(&[true, false]), Verdict::InPart);
        assert_eq!(Verdict::of(&[false, false]), Verdict::NotHeld);
    }
}
