//! A connection to a service, and what it sends over and over.
//!
//! The loops keep names, tokens and requests in buffers that they use again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use keylatch_testkit::handshake;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{Piece, SET, STUCK, Times, Work};
use crate::Result;
use crate::wire::{Names, Order, Pair, Response, lock_set, response, webdis_lock};

/// The pause before a request is sent again that the store did not take.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) struct Connection {
    stream: Either<TcpStream, TlsStream<TcpStream>>,
    /// The last response, at its beginning.
    pub(crate) buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: Either::Left(stream), buffer: vec![0; 8192] })
    }

    pub(super) async fn open_tls(address: SocketAddr, tls: &Arc<ClientConfig>) -> Result<Self> {
        let stream = handshake(address, tls).await?;
        stream.get_ref().0.set_nodelay(true)?;
        Ok(Self { stream: Either::Right(stream), buffer: vec![0; 8192] })
    }

    /// Works until the end; the times while measuring.
    pub(super) async fn work(
        mut self,
        work: Work,
        names: Arc<Names>,
        mut times: Times,
    ) -> Result<Vec<u32>> {
        match work {
            Work::Lock => self.create_and_delete("", &names, &mut times).await?,
            Work::Known(header) => self.create_and_delete(&header, &names, &mut times).await?,
            Work::Turns(body) => self.take_turns(body, &mut times).await?,
            Work::FirstRun => self.submit(false, &names, &mut times).await?,
            Work::Replay => self.submit(true, &names, &mut times).await?,
            Work::Nothing => self.ask_nothing(&mut times).await?,
            Work::Webdis(script) => self.set_and_delete(&script, &names, &mut times).await?,
        }
        Ok(times.taken)
    }

    async fn create_and_delete(
        &mut self,
        header: &str,
        names: &Names,
        times: &mut Times,
    ) -> Result<()> {
        let mut pair = Pair::new(header, "");
        while !times.is_over() {
            pair.rename(names)?;
            let started = Instant::now();
            self.create(&mut pair).await?;
            times.note(started);
            let started = Instant::now();
            self.exchange(&pair.delete, 204).await?;
            times.note(started);
        }
        Ok(())
    }

    async fn take_turns(&mut self, body: &str, times: &mut Times) -> Result<()> {
        let mut pair = Pair::new("", body);
        while !times.is_over() {
            let started = Instant::now();
            self.create(&mut pair).await?;
            times.note(started);
            self.exchange(&pair.delete, 204).await?;
        }
        Ok(())
    }

    async fn submit(&mut self, repeated: bool, names: &Names, times: &mut Times) -> Result<()> {
        let mut order = Order::new(names)?;
        if repeated {
            self.fill_in(&order.request).await?;
        }
        while !times.is_over() {
            let started = Instant::now();
            if self.exchange(&order.request, 201).await?.replayed != repeated {
                return Err("a first run was replayed, or a repeat was not".into());
            }
            times.note(started);
            if !repeated {
                order.rename(names)?;
            }
        }
        Ok(())
    }

    async fn ask_nothing(&mut self, times: &mut Times) -> Result<()> {
        while !times.is_over() {
            let started = Instant::now();
            self.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 204).await?;
            times.note(started);
        }
        Ok(())
    }

    async fn set_and_delete(
        &mut self,
        script: &str,
        names: &Names,
        times: &mut Times,
    ) -> Result<()> {
        while !times.is_over() {
            for request in webdis_lock(names, script)? {
                let started = Instant::now();
                self.exchange(&request, 200).await?;
                times.note(started);
            }
        }
        Ok(())
    }

    /// Makes pieces as long as there is one left.
    pub(super) async fn fill(
        mut self,
        piece: Piece,
        names: Arc<Names>,
        left: Arc<AtomicUsize>,
    ) -> Result<()> {
        let one_less = |left: usize| left.checked_sub(1);
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            match piece {
                Piece::Set => self.fill_in(&lock_set(&names, SET)?).await?,
                Piece::Order => self.fill_in(&Order::new(&names)?.request).await?,
            }
        }
        Ok(())
    }

    /// Sends a request until it is carried out. A store that is filled is not measured, and may be
    /// late.
    async fn fill_in(&mut self, request: &[u8]) -> Result<()> {
        let began = Instant::now();
        self.send(request).await?;
        while self.answer(&[201, 503]).await?.status != 201 {
            if began.elapsed() > STUCK {
                return Err("the store did not take a record or a set of locks".into());
            }
            sleep(RETRY).await;
            self.send(request).await?;
        }
        Ok(())
    }

    /// Creates a lock over and over, until `stop` is set. It takes a grant and both refusals for
    /// responses, and returns how many requests were above a quota.
    pub(crate) async fn press(mut self, header: &str, stop: &AtomicBool) -> Result<usize> {
        let pair = Pair::new(header, "");
        let mut refused = 0;
        while !stop.load(Ordering::Relaxed) {
            self.send(&pair.create).await?;
            // The lock has one name, so it is held after the first.
            refused += usize::from(self.answer(&[201, 409, 429]).await?.status == 429);
        }
        Ok(refused)
    }

    /// Creates the lock of a pair, whose delete then has its token.
    pub(crate) async fn create(&mut self, pair: &mut Pair) -> Result<()> {
        self.send(&pair.create).await?;
        self.receive(pair).await
    }

    /// The lock that was asked for.
    pub(crate) async fn receive(&mut self, pair: &mut Pair) -> Result<()> {
        let token = self.answer(&[201]).await?.token.ok_or("a lease came without a Lock-Token")?;
        pair.set_token(&self.buffer[token]);
        Ok(())
    }

    /// Sends a request; the response, which must have the status `expected`.
    pub(crate) async fn exchange(&mut self, request: &[u8], expected: u16) -> Result<Response> {
        self.send(request).await?;
        self.answer(&[expected]).await
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(request).await?)
    }

    /// The next response, which must have one of the statuses `expected`.
    pub(crate) async fn answer(&mut self, expected: &[u16]) -> Result<Response> {
        let mut filled = 0;
        let found = loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                return Err("the server closed a connection in use".into());
            }
            filled += read;
            if let Some(found) = response(&self.buffer[..filled])? {
                break found;
            }
        };
        if !expected.contains(&found.status) || found.bytes != filled {
            let answer = String::from_utf8_lossy(&self.buffer[..filled]);
            return Err(format!("expected {expected:?}, got: {answer}").into());
        }
        Ok(found)
    }
}
