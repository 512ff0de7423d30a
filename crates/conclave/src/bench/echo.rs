//! The physical floor: a bare echo, fanned out to as many processes as a quorum has members.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::cli::Failure;

/// Bytes of one echoed message: about a request with a short name.
const MESSAGE: usize = 64;

/// Serves echoes until standard input ends; prints its address first.
pub(crate) fn serve() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    crate::output::line(listener.local_addr()?.to_string())?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream));
        }
    });
    // The parent holds the other end: when it is gone, so are we.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 4096];
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..count])?;
    }
}

/// Echo processes; they end with this value.
struct Echoes {
    children: Vec<Child>,
    streams: Vec<TcpStream>,
}

impl Echoes {
    fn start(processes: usize) -> Result<Self, Failure> {
        let mut echoes = Self {
            children: Vec::new(),
            streams: Vec::new(),
        };
        for _ in 0..processes {
            let mut child = Command::new(std::env::current_exe()?)
                .args(["bench-echo"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut address = String::new();
            if let Some(out) = child.stdout.take() {
                BufReader::new(out).read_line(&mut address)?;
            }
            echoes.children.push(child);
            let stream = TcpStream::connect(address.trim())?;
            stream.set_nodelay(true)?;
            echoes.streams.push(stream);
        }
        Ok(echoes)
    }

    /// One message to every process, then all their answers.
    fn round(&mut self) -> io::Result<()> {
        let message = [7; MESSAGE];
        for stream in &mut self.streams {
            stream.write_all(&message)?;
        }
        let mut answer = [0; MESSAGE];
        for stream in &mut self.streams {
            stream.read_exact(&mut answer)?;
        }
        Ok(())
    }
}

impl Drop for Echoes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The times of fanned-out echoes in nanoseconds, one after the other for so long.
pub(super) fn measure(processes: usize, span: Duration) -> Result<Histogram<u64>, Failure> {
    let mut echoes = Echoes::start(processes)?;
    let mut times = super::histogram();
    let warm = Instant::now();
    while warm.elapsed() < span / 10 {
        echoes.round()?;
    }
    let start = Instant::now();
    while start.elapsed() < span {
        let before = Instant::now();
        echoes.round()?;
        let _ = times.record(u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(times)
}
