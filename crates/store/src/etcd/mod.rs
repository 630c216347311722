//! The engine on etcd.
use crate::state::Shared;
use crate::{Error, EtcdOptions, Index, Object, Options, Write, WriteError};
use std::sync::Arc;
pub(crate) struct Engine<I> {
    _state: Arc<Shared<I>>,
}
pub(crate) async fn open<I: Index>(
    _etcd: EtcdOptions,
    _options: Options,
) -> Result<(Arc<Shared<I>>, Engine<I>), Error> {
    Err(Error::Closed)
}
impl<I: Index> Engine<I> {
    pub(crate) async fn write(&self, _write: Write) -> Result<Arc<Object<I>>, WriteError<I>> {
        Err(Error::Closed.into())
    }
    pub(crate) async fn barrier(&self) -> Result<u64, Error> {
        Err(Error::Closed)
    }
    pub(crate) async fn close(&self) -> Result<(), Error> {
        Err(Error::Closed)
    }
}
