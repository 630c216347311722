//! Ctrl-C: ends every wait of a drill, but never a write, so that it is always known what was changed.

use crate::error::{Error, Result};
use std::time::Duration;
use tokio::sync::watch;

/// Tells a drill to stop and to put back what it changed.
#[derive(Debug, Clone)]
pub struct Interrupt(watch::Receiver<bool>);

/// The other end: [`Stopper::stop`] interrupts.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Interrupt {
    pub fn new() -> (Stopper, Interrupt) {
        let (sender, receiver) = watch::channel(false);
        (Stopper(sender), Interrupt(receiver))
    }

    pub(crate) fn check(&self) -> Result<()> {
        if *self.0.borrow() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Waits this long, or until it is interrupted.
    pub(crate) async fn sleep(&self, time: Duration) -> Result<()> {
        let mut stopped = self.0.clone();
        let interrupted = async {
            // The other end is gone: nothing can interrupt any more.
            if stopped.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            () = interrupted => Err(Error::Interrupted),
        }
    }
}

impl Stopper {
    pub fn stop(&self) {
        let _ = self.0.send(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_it_is_interrupted() {
        let (stopper, interrupt) = Interrupt::new();
        assert!(interrupt.sleep(Duration::from_secs(1)).await.is_ok());
        assert!(interrupt.check().is_ok());
        let waiting = interrupt.clone();
        let waiting =
            tokio::spawn(async move { waiting.sleep(Duration::from_secs(1_000_000)).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        stopper.stop();
        assert!(matches!(waiting.await.unwrap(), Err(Error::Interrupted)));
        assert!(interrupt.check().is_err());
    }
}
