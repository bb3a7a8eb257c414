//! Subjects that are measured in turn, round by round, and the table of what was measured.
//!
//! A row has the medians of its rounds. A ratio is taken round by round, because noise that comes
//! and goes then hits both, and has its least and most beside it. Every other round goes backwards,
//! so that no subject always follows the same one.

use crate::Result;
use crate::slice::{Cpu, Slice, Spread};

/// What the columns of each table mean.
pub(crate) const LEGEND: &str = "\
Numbers are medians of the rounds; in parentheses, the least and the most.
p50, p99: of creates and deletes together, unless a table says otherwise.
generator, service, redis, others: how many cores each kept busy; others is what takes no part and
only disturbs: measure again when it is above 0.1. A generator near 1 limits the rate itself.
µs each: CPU time of service and Redis for a request.";

/// Subjects, one a row, and which of them the others are compared with.
#[derive(Default)]
pub(crate) struct Table<'a> {
    rows: Vec<Row<'a>>,
    ratios: Vec<Ratio>,
}

struct Row<'a> {
    name: String,
    measure: Box<dyn FnMut() -> Result<Slice> + 'a>,
    slices: Vec<Slice>,
}

/// A column: a value of each row as a part of the same value of `base`.
struct Ratio {
    heading: String,
    base: String,
    value: fn(&Slice) -> f64,
}

impl<'a> Table<'a> {
    pub(crate) fn row(
        mut self,
        name: impl Into<String>,
        measure: impl FnMut() -> Result<Slice> + 'a,
    ) -> Self {
        let (name, measure) = (name.into(), Box::new(measure));
        self.rows.push(Row { name, measure, slices: Vec::new() });
        self
    }

    /// A column of the rates, as parts of that of the row `base`.
    pub(crate) fn of(self, base: &str) -> Self {
        let heading = format!("of {base}");
        self.ratio(&heading, base, |slice| slice.rate)
    }

    pub(crate) fn ratio(mut self, heading: &str, base: &str, value: fn(&Slice) -> f64) -> Self {
        let (heading, base) = (heading.to_owned(), base.to_owned());
        self.ratios.push(Ratio { heading, base, value });
        self
    }

    /// Measures all rows in turn and prints them below a title.
    pub(crate) fn run(mut self, title: &str, rounds: u32) -> Result<()> {
        for round in 0..rounds {
            for place in 0..self.rows.len() {
                let backwards = self.rows.len() - 1 - place;
                let row = &mut self.rows[if round.is_multiple_of(2) { place } else { backwards }];
                row.slices.push((row.measure)()?);
            }
        }
        println!("\n{title}");
        self.print()
    }

    fn print(&self) -> Result<()> {
        print!("{:<30}{:>27}{:>9}{:>9}", "subject", "requests/s", "p50 ms", "p99 ms");
        print!("{:>11}{:>9}{:>7}{:>8}{:>9}", "generator", "service", "redis", "others", "µs each");
        for Ratio { heading, .. } in &self.ratios {
            print!("{heading:>28}");
        }
        println!();
        for Row { name, slices, .. } in &self.rows {
            print_slices(name, slices);
            for ratio in &self.ratios {
                print!("{:>28}", self.ratio_of(slices, ratio)?.to_string());
            }
            println!();
        }
        Ok(())
    }

    fn ratio_of(&self, slices: &[Slice], Ratio { base, value, .. }: &Ratio) -> Result<Spread> {
        let base = self.rows.iter().find(|row| row.name == *base).ok_or("no such row")?;
        let pairs = slices.iter().zip(&base.slices);
        Ok(Spread::new(pairs.map(|(slice, base)| value(slice) / value(base)).collect()))
    }
}

fn print_slices(name: &str, slices: &[Slice]) {
    let of = |value: fn(&Slice) -> f64| Spread::of(slices, value);
    let rate = of(|slice| slice.rate);
    let rate = format!("{:.0} ({:.0}–{:.0})", rate.median, rate.least, rate.most);
    let (p50, p99) = (of(|slice| slice.p50).median, of(|slice| slice.p99).median);
    print!("{name:<30}{rate:>27}{p50:>9.3}{p99:>9.3}");
    let cores = |value: fn(&Cpu) -> f64| Spread::of(slices, |slice| value(&slice.cores)).median;
    let (generator, service) = (cores(|cpu| cpu.generator), cores(|cpu| cpu.service));
    let (redis, others) = (cores(|cpu| cpu.redis), cores(|cpu| cpu.others()));
    print!("{generator:>11.2}{service:>9.2}{redis:>7.2}{others:>8.2}");
    print!("{:>9.1}", of(Slice::cost).median);
}
