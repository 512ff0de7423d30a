//! States that clients give to a node because it cannot make them from what it has.

use super::{ObjectOut, ObjectServer};
use crate::id::{LinkId, Name};
use crate::object::message::{ObjectRefusal, ObjectTell, Page};
use crate::object::record::{Assembled, Assembly};
use crate::object::state::{Stamp, State};
use crate::time::{Instant, Now};

/// A state that a connection gives.
#[derive(Debug)]
pub(super) struct Upload {
    object: Name,
    assembly: Assembly,
    pub(super) used: Instant,
}

impl Upload {
    pub(super) fn bytes(&self) -> usize {
        self.assembly.bytes()
    }

    pub(super) fn state(&self, object: &Name, stamp: Stamp) -> Option<&State> {
        let state = self.assembly.whole()?;
        (self.object == *object && state.stamp() == stamp).then_some(state)
    }
}

impl ObjectServer {
    /// Takes a page of a state; a connection gives one state at a time.
    pub(super) fn give(
        &mut self,
        now: Now,
        (link, object): (LinkId, &Name),
        ticket: u64,
        stamp: Stamp,
        page: &Page,
        out: &mut ObjectOut,
    ) {
        let Some(port) = self.ports.get_mut(&link) else {
            return;
        };
        let same = |upload: &Upload| upload.object == *object && upload.assembly.stamp() == stamp;
        let mut upload = match port.upload.take() {
            Some(upload) if upload.state(object, stamp).is_some() => {
                // It is whole already; only the answer was lost.
                port.upload = Some(upload);
                let whole = page.last;
                return out.tell(link, object, ObjectTell::Given { ticket, whole });
            }
            Some(upload) if same(&upload) && !upload.assembly.restarts(page) => upload,
            other => {
                self.uploaded -= other.map_or(0, |upload| upload.bytes());
                Upload {
                    object: object.clone(),
                    assembly: Assembly::new(stamp),
                    used: now.mono,
                }
            }
        };
        self.uploaded -= upload.bytes();
        let left = self.config.uploads_bytes.saturating_sub(self.uploaded);
        let most = self.config.object_size_max.min(left);
        let added = upload.assembly.add(page, most);
        upload.used = now.mono;
        let tell = match added {
            Assembled::More => ObjectTell::Given {
                ticket,
                whole: false,
            },
            Assembled::Whole => ObjectTell::Given {
                ticket,
                whole: true,
            },
            Assembled::False => ObjectTell::Gone {
                ticket,
                why: ObjectRefusal::Contradiction,
            },
        };
        if added != Assembled::False {
            self.uploaded += upload.bytes();
            port.upload = Some(upload);
        }
        out.tell(link, object, tell);
        self.sweep_soon(now);
    }

    /// Forgets a state that was given, because it was taken.
    pub(super) fn consumed(&mut self, link: LinkId, object: &Name, stamp: Stamp) {
        let Some(port) = self.ports.get_mut(&link) else {
            return;
        };
        let taken = |upload: &mut Upload| upload.state(object, stamp).is_some();
        if let Some(upload) = port.upload.take_if(taken) {
            self.uploaded -= upload.bytes();
        }
    }
}
