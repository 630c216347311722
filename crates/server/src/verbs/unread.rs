//! The initial objects of a watch, until its client has read them.
//!
//! The list is shared with other watches that started at the same time, but keeps all its versions in memory. So a client
//! that stops reading loses it after a while, and has to start again.

use crate::object::Object;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use store::SharedList;

/// A client that reads nothing for this long loses the list.
const STALL_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Unread {
    list: Option<Arc<Mutex<List>>>,
    guarded: bool,
}

struct List {
    /// None after the client has stalled for too long.
    objects: Option<SharedList<crate::object::Index>>,
    next: usize,
}

pub(crate) enum Next {
    Object(Arc<Object>),
    /// All objects have been read.
    End,
    /// The client has stalled for too long.
    Gone,
}

impl Unread {
    pub(crate) fn of(objects: SharedList<crate::object::Index>) -> Unread {
        let list = List { objects: Some(objects), next: 0 };
        Unread { list: Some(Arc::new(Mutex::new(list))), guarded: false }
    }

    pub(crate) fn next(&mut self) -> Next {
        let Some(shared) = &self.list else { return Next::End };
        let mut list = lock(shared);
        let Some(objects) = &list.objects else { return Next::Gone };
        let (found, last) = (objects.get(list.next).cloned(), list.next + 1 >= objects.len());
        list.next += 1;
        drop(list);
        if last {
            self.list = None;
        }
        found.map_or(Next::End, Next::Object)
    }

    /// Starts the stall timer, once the client has received the first chunk.
    pub(crate) fn guard(&mut self) {
        let Some(list) = &self.list else { return };
        if !std::mem::replace(&mut self.guarded, true) {
            tokio::spawn(forget_if_stalled(Arc::downgrade(list)));
        }
    }
}

fn lock(list: &Mutex<List>) -> MutexGuard<'_, List> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn forget_if_stalled(list: Weak<Mutex<List>>) {
    let mut seen = None;
    loop {
        tokio::time::sleep(STALL_MAX).await;
        let Some(list) = list.upgrade() else { return };
        let mut list = lock(&list);
        if seen.replace(list.next) == Some(list.next) {
            list.objects = None;
            return;
        }
    }
}
