//! What was measured: the table, and the figures as JSON.

use std::io::Write;
use std::path::Path;

use crate::meter::Cost;

/// The backend that the others are held against.
pub const CLIENT: &str = "fluss client";

#[derive(Default)]
pub struct Figures(Vec<Figure>);

struct Figure {
    work: String,
    backend: &'static str,
    cost: Cost,
}

impl Figures {
    /// Keeps and prints one line.
    pub fn add(&mut self, work: &str, backend: &'static str, cost: Cost) {
        let bare = self.0.iter().find(|figure| figure.work == work && figure.backend == CLIENT);
        let all = |cost: &Cost| cost.client_cpu() + cost.server_cpu();
        let ratio = bare.map_or(String::new(), |bare| format!("{:.2}", all(&cost) / all(&bare.cost)));
        println!(
            "{work:<38}{backend:<14}{:>8}{:>14.3}{:>14.2}{:>14.2}{ratio:>10}",
            cost.calls.len(),
            cost.median().as_secs_f64() * 1e3,
            cost.client_cpu(),
            cost.server_cpu(),
        );
        self.0.push(Figure { work: work.to_owned(), backend, cost });
    }

    pub fn header() {
        println!(
            "{:<38}{:<14}{:>8}{:>14}{:>14}{:>14}{:>10}",
            "work", "backend", "calls", "median ms", "client µs/row", "server µs/row", "CPU ratio"
        );
    }

    /// Median time by the clock of a work, in milliseconds.
    pub fn median(&self, work: &str, backend: &str) -> Option<f64> {
        let figure = self.0.iter().find(|figure| figure.work == work && figure.backend == backend)?;
        Some(figure.cost.median().as_secs_f64() * 1e3)
    }

    /// Writes every figure as a JSON object a line.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        let mut out = std::fs::File::create(file)?;
        for Figure { work, backend, cost } in &self.0 {
            let mut line = |metric: &str, value: f64, unit: &str| {
                writeln!(
                    out,
                    r#"{{"work": "{work}", "backend": "{backend}", "metric": "{metric}", "value": {value}, "unit": "{unit}"}}"#
                )
            };
            line("median time", cost.median().as_secs_f64() * 1e3, "ms")?;
            line("client CPU by row", cost.client_cpu(), "us")?;
            line("server CPU by row", cost.server_cpu(), "us")?;
        }
        Ok(())
    }
}
