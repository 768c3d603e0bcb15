//! Time by the clock, and CPU of this process and of the server.

use std::time::{Duration, Instant};

use crate::rows;

/// Clock ticks of `/proc/<pid>/stat`, which Linux fixes at 100 a second.
const TICKS_A_SECOND: f64 = 100.0;
/// Quiet: no process uses more than a tick in so long.
const QUIET: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What calls of one kind have cost so far.
#[derive(Default)]
pub struct Cost {
    pub calls: Vec<Duration>,
    pub rows: u64,
    /// CPU seconds.
    pub client: f64,
    pub server: f64,
}

impl Cost {
    pub fn median(&self) -> Duration {
        let mut calls = self.calls.clone();
        calls.sort_unstable();
        calls[calls.len() / 2]
    }

    /// CPU microseconds a row.
    pub fn client_cpu(&self) -> f64 {
        self.client * 1e6 / self.rows as f64
    }

    pub fn server_cpu(&self) -> f64 {
        self.server * 1e6 / self.rows as f64
    }
}

/// Reads the clocks.
pub struct Meter {
    /// The tablet server's process, if there is one.
    pub server: Option<u32>,
}

impl Meter {
    fn ticks(process: &str) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
        // User and system time are fields 14 and 15; the name before may hold spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
        fields[11..13].iter().map(|field| field.parse::<f64>().expect("a number")).sum()
    }

    /// CPU seconds of this process and of the server.
    fn read(&self) -> (f64, f64) {
        let server = self.server.map_or(0.0, |process| Self::ticks(&process.to_string()));
        (Self::ticks("self") / TICKS_A_SECOND, server / TICKS_A_SECOND)
    }

    /// Measures one call, which handles so many rows.
    pub async fn measure<T>(&self, cost: &mut Cost, rows: u64, call: impl Future<Output = T>) -> T {
        let (client, server) = self.read();
        let began = Instant::now();
        let answer = call.await;
        cost.calls.push(began.elapsed());
        let (client_after, server_after) = self.read();
        cost.client += client_after - client;
        cost.server += server_after - server;
        cost.rows += rows;
        answer
    }

    /// Measures calls that are too short for the clocks of the CPU: as many as fit into `time`.
    pub async fn measure_many(&self, cost: &mut Cost, rows: u64, time: Duration, mut call: impl AsyncFnMut(u64)) {
        let (client, server) = self.read();
        let began = Instant::now();
        let mut number = rows::mix(cost.calls.len() as u64);
        while began.elapsed() < time {
            let call_began = Instant::now();
            call(number).await;
            cost.calls.push(call_began.elapsed());
            cost.rows += rows;
            number = number.wrapping_add(1);
        }
        let (client_after, server_after) = self.read();
        cost.client += client_after - client;
        cost.server += server_after - server;
    }

    /// Waits until what runs in the background has ended.
    pub async fn quiet(&self) {
        let began = Instant::now();
        while began.elapsed() < LONGEST_WAIT {
            let (client, server) = self.read();
            tokio::time::sleep(QUIET).await;
            let (client_after, server_after) = self.read();
            if (client_after - client).max(server_after - server) * TICKS_A_SECOND <= 1.5 {
                return;
            }
        }
    }
}
