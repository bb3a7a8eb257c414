//! What open consoles cost the service: its throughput with none, one and three of them, in turn.
//!
//! A console is a client that reads what the page reads: the stream of the held locks, and a glance
//! every three seconds. The locks that the load creates and deletes are changes beside 10,000 that
//! stay.

use std::io::{Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use crate::Result;
use crate::load::Load;
use crate::processes::Machine;
use crate::report;
use crate::slice::{Slice, Spread};

/// How many locks stay held.
const HELD: usize = 10_000;
/// How many consoles are open, subject by subject.
const CONSOLES: [usize; 3] = [0, 1, 3];
/// How often a console asks for a glance.
const PERIOD: Duration = Duration::from_secs(3);
/// How soon it does so first, so that each window has one.
const FIRST: Duration = Duration::from_millis(500);
/// The part of the throughput that one console may cost.
const GOAL: f64 = 0.05;

/// Measures the service with each number of consoles, and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let service = machine.keylatch("memory:")?;
    load.fill(&service, HELD)?;
    let mut measured: [Vec<Slice>; 3] = Default::default();
    for _ in 0..rounds {
        for (slices, count) in measured.iter_mut().zip(CONSOLES) {
            let open: Result<Vec<_>> = (0..count).map(|_| Console::open(service.address)).collect();
            let open = open?;
            slices.push(load.measure(&service, None)?);
            open.into_iter().try_for_each(Console::close)?;
        }
    }
    print(&measured);
    Ok(())
}

fn print(measured: &[Vec<Slice>; 3]) {
    let [none, one, three] = measured;
    let rows = [("no console", &none[..]), ("1 console", &one[..]), ("3 consoles", &three[..])];
    println!("\n{HELD} locks are held beside those of the load.");
    report::table(&["of no console"], &rows, |slices| vec![Some(Spread::of_rates(slices, none))]);
    report::legend("", &rows);
    println!("\nGoals:");
    for (consoles, what, slices) in [(1.0, "with one console", one), (3.0, "with three", three)] {
        let left = 1.0 - consoles * GOAL;
        let rate = Spread::of_rates(slices, none);
        let what = format!("{what}, at least {left:.2} of the throughput");
        report::goal(&what, rate.median >= left, rate);
        report::by_cpu_time(slices, none);
    }
}

/// A client that reads what a console reads.
struct Console {
    stream: TcpStream,
    closing: Sender<()>,
    reading: JoinHandle<()>,
    polling: JoinHandle<Result<()>>,
}

impl Console {
    /// A console that has all locks.
    fn open(address: SocketAddr) -> Result<Self> {
        let mut stream = send(address, "/console/locks", "1.1")?;
        let (mut buffer, mut last) = (vec![0; 1 << 16], Vec::new());
        // The end of the first event, and of the chunk that it is in.
        while !last.ends_with(b"\n\n\r\n") {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Err("the service closed the stream of a console".into());
            }
            last = buffer[read.saturating_sub(4)..read].to_vec();
        }
        let mut events = stream.try_clone()?;
        // It ends with the connection, which is reset where events are on their way.
        let reading = spawn(move || while events.read(&mut buffer).is_ok_and(|read| read > 0) {});
        let (closing, closed) = channel();
        let polling = spawn(move || {
            let mut pause = FIRST;
            while closed.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let mut glance = Vec::new();
                send(address, "/console/glance", "1.0")?.read_to_end(&mut glance)?;
                if !glance.starts_with(b"HTTP/1.0 200") {
                    return Err("a console got no glance".into());
                }
                pause = PERIOD;
            }
            Ok(())
        });
        Ok(Self { stream, closing, reading, polling })
    }

    fn close(self) -> Result<()> {
        if self.reading.is_finished() {
            return Err("the service closed the stream of a console".into());
        }
        drop(self.closing);
        self.stream.shutdown(Shutdown::Both)?;
        self.reading.join().map_err(|_| "a console panicked")?;
        self.polling.join().map_err(|_| "a console panicked")?
    }
}

/// A connection on which the path was asked for.
fn send(address: SocketAddr, path: &str, version: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/{version}\r\nHost: localhost\r\n\r\n")?;
    Ok(stream)
}
