//! Types that say what intersects.
//!
//! | type | promise |
//! |---|---|
//! | [`Coterie`] | any two quorums share a node |
//! | [`Masking`] | any two share `overlap` nodes; some quorum avoids any `spared` nodes |
//! | [`GroupSystem`] | quorums of different cartels share a node; within one they need not |
//! | [`System::Loose`] | nothing |

use std::sync::Arc;

use thiserror::Error;

use crate::{Family, NodeSet};

/// A family in which any two quorums share a node: what an exclusive lock needs.
#[derive(Clone, Debug)]
pub struct Coterie(Arc<dyn Family>);

impl Coterie {
    /// Takes a family whose intersection is proved by its construction.
    pub(crate) fn by_construction(family: Arc<dyn Family>) -> Self {
        Self(family)
    }

    /// The family of quorums.
    pub fn family(&self) -> &Arc<dyn Family> {
        &self.0
    }
}

/// A family whose quorums overlap enough to outvote lying nodes.
#[derive(Clone, Debug)]
pub struct Masking {
    family: Arc<dyn Family>,
    overlap: usize,
    spared: usize,
    faults: usize,
}

impl Masking {
    /// Takes a family in which any two quorums share at least `overlap` nodes and some quorum
    /// avoids any `spared` nodes, by construction, built for `faults` lying nodes.
    pub(crate) fn by_construction(
        family: Arc<dyn Family>,
        overlap: usize,
        spared: usize,
        faults: usize,
    ) -> Self {
        Self {
            family,
            overlap,
            spared,
            faults,
        }
    }

    /// The family of quorums.
    pub fn family(&self) -> &Arc<dyn Family> {
        &self.family
    }

    /// Any two quorums share at least this many nodes.
    pub fn overlap(&self) -> usize {
        self.overlap
    }

    /// Some quorum avoids any this many nodes.
    pub fn spared(&self) -> usize {
        self.spared
    }

    /// How many nodes may lie.
    pub fn faults(&self) -> usize {
        self.faults
    }
}

/// Cartels for a fixed number of groups: quorums of different cartels share a node.
#[derive(Clone, Debug)]
pub struct GroupSystem {
    cartels: Vec<Arc<dyn Family>>,
    exclusive: Coterie,
}

impl GroupSystem {
    /// Takes cartels whose quorums meet across cartels by construction, and a coterie whose
    /// quorums also meet every quorum of every cartel.
    pub(crate) fn by_construction(
        cartels: Vec<Arc<dyn Family>>,
        exclusive: Arc<dyn Family>,
    ) -> Self {
        assert!(
            !cartels.is_empty(),
            "invariant: a group system has a cartel"
        );
        Self {
            cartels,
            exclusive: Coterie::by_construction(exclusive),
        }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.exclusive.family().nodes()
    }

    /// One family of quorums per registered group.
    pub fn cartels(&self) -> &[Arc<dyn Family>] {
        &self.cartels
    }

    /// The quorums of exclusive requests, and of groups that have no cartel of their own: they
    /// meet each other and every quorum of every cartel.
    pub fn exclusive(&self) -> &Coterie {
        &self.exclusive
    }

    /// Gives each named group a cartel of its own. Two groups on one cartel could own disjoint
    /// quorums, so sharing is refused, and so is any rule (such as a hash) that could cause it.
    /// Cartels are counted from 0.
    pub fn register(
        &self,
        groups: impl IntoIterator<Item = (String, usize)>,
    ) -> Result<Registry, RegisterError> {
        let mut taken: Vec<Option<String>> = vec![None; self.cartels.len()];
        for (name, cartel) in groups {
            let Some(slot) = taken.get_mut(cartel) else {
                return Err(RegisterError::NoSuchCartel {
                    group: name,
                    cartel: cartel + 1,
                    cartels: self.cartels.len(),
                });
            };
            if let Some(other) = slot {
                return Err(RegisterError::Shared {
                    cartel: cartel + 1,
                    first: other.clone(),
                    second: name,
                });
            }
            *slot = Some(name.clone());
            let places = taken.iter().flatten().filter(|group| *group == &name);
            if places.count() > 1 {
                return Err(RegisterError::Twice { group: name });
            }
        }
        Ok(Registry {
            system: self.clone(),
            groups: taken,
        })
    }
}

/// Group names with a cartel each; every other name uses the exclusive quorums.
#[derive(Clone, Debug)]
pub struct Registry {
    system: GroupSystem,
    groups: Vec<Option<String>>,
}

impl Registry {
    /// The quorums that requests of this group may use.
    pub fn quorums(&self, group: &str) -> &Arc<dyn Family> {
        let place = self
            .groups
            .iter()
            .position(|name| name.as_deref() == Some(group));
        match place {
            Some(cartel) => &self.system.cartels[cartel],
            None => self.system.exclusive.family(),
        }
    }
}

/// Why group names could not be given cartels.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// Two groups asked for one cartel.
    #[error(
        "groups '{first}' and '{second}' share cartel {cartel}: two groups on one cartel can own \
         disjoint quorums; give each its own cartel, or leave one unregistered"
    )]
    Shared {
        /// The cartel, from 1.
        cartel: usize,
        /// The group that has it.
        first: String,
        /// The group that asked for it too.
        second: String,
    },
    /// One group asked for two cartels.
    #[error("group '{group}' is registered twice: a group has one cartel")]
    Twice {
        /// The group.
        group: String,
    },
    /// The cartel does not exist.
    #[error("group '{group}' asks for cartel {cartel}, but the system has cartels 1 to {cartels}")]
    NoSuchCartel {
        /// The group.
        group: String,
        /// The cartel asked for, from 1.
        cartel: usize,
        /// How many there are.
        cartels: usize,
    },
}

/// Any quorum system, with what is known of its intersections.
#[derive(Clone, Debug)]
pub enum System {
    /// Any two quorums share a node.
    Coterie(Coterie),
    /// Any two quorums share several nodes.
    Masking(Masking),
    /// Quorums of different cartels share a node.
    Groups(GroupSystem),
    /// Nothing is promised: a protocol must not use it, a check may show why.
    Loose(Arc<dyn Family>),
}

impl System {
    /// How many nodes the system is over.
    pub fn nodes(&self) -> usize {
        match self {
            Self::Coterie(coterie) => coterie.family().nodes(),
            Self::Masking(masking) => masking.family().nodes(),
            Self::Groups(groups) => groups.nodes(),
            Self::Loose(family) => family.nodes(),
        }
    }

    /// One word for the kind: `coterie`, `masking`, `groups` or `loose`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Coterie(_) => "coterie",
            Self::Masking(_) => "masking",
            Self::Groups(_) => "groups",
            Self::Loose(_) => "loose",
        }
    }

    /// The family that a request uses: of the given cartel (from 0), or without one the
    /// exclusive quorums. `None` if there is no such cartel.
    pub fn family(&self, cartel: Option<usize>) -> Option<&Arc<dyn Family>> {
        match (self, cartel) {
            (Self::Groups(groups), Some(cartel)) => groups.cartels().get(cartel),
            (Self::Groups(groups), None) => Some(groups.exclusive().family()),
            (Self::Coterie(coterie), None) => Some(coterie.family()),
            (Self::Masking(masking), None) => Some(masking.family()),
            (Self::Loose(family), None) => Some(family),
            (_, Some(_)) => None,
        }
    }

    /// All families of the system: the cartels of a group system, else the one family.
    pub fn families(&self) -> Vec<&Arc<dyn Family>> {
        match self {
            Self::Groups(groups) => groups.cartels().iter().collect(),
            Self::Coterie(coterie) => vec![coterie.family()],
            Self::Masking(masking) => vec![masking.family()],
            Self::Loose(family) => vec![family],
        }
    }
}

/// Two quorums that should meet and do not, or not enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// One quorum.
    pub left: NodeSet,
    /// The other.
    pub right: NodeSet,
}
