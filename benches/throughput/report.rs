//! How numbers are printed.
//!
//! A row has the medians of all rounds and how far they spread; a row that other processes
//! disturbed is marked. A goal prints whether it was reached, with the figure beside it.

use std::fmt;

use crate::slice::{Cpu, Slice, Spread};

/// A machine on which others keep so much of a core busy is not fit for measuring.
const DISTURBED: f64 = 0.1;

/// Prints a row for each subject: what was measured, and then what `compare` makes of it.
pub(crate) fn table(
    headings: &[&str],
    rows: &[(&str, &[Slice])],
    compare: impl Fn(&[Slice]) -> Vec<Option<Spread>>,
) {
    print!("\n{:<22}{:>27}{:>9}{:>9}", "subject", "requests/s", "p50 ms", "p99 ms");
    print!("{:>11}{:>9}{:>7}{:>8}{:>9}", "generator", "service", "redis", "others", "µs each");
    for heading in headings {
        print!("{heading:>20}");
    }
    println!();
    for (subject, slices) in rows {
        let of = |value: fn(&Slice) -> f64| Spread::of(slices, value);
        let rate = Thousands(of(|slice| slice.rate)).to_string();
        let (p50, p99) = (of(|slice| slice.p50).median, of(|slice| slice.p99).median);
        print!("{subject:<22}{rate:>27}{p50:>9.3}{p99:>9.3}");
        let cores = |value: fn(&Cpu) -> f64| Spread::of(slices, |slice| value(&slice.cores)).median;
        let (generator, service) = (cores(|cpu| cpu.generator), cores(|cpu| cpu.service));
        let (redis, others) = (cores(|cpu| cpu.redis), cores(|cpu| cpu.others()));
        print!("{generator:>11.2}{service:>9.2}{redis:>7.2}{others:>8.2}");
        print!("{:>9.1}", of(Slice::cost).median);
        for ratio in compare(slices) {
            print!("{:>20}", ratio.map(|ratio| ratio.to_string()).unwrap_or_default());
        }
        println!();
    }
}

/// Prints what the columns of [`table`] mean, and whether the numbers can be trusted.
pub(crate) fn legend(of_latencies: &str, rows: &[(&str, &[Slice])]) {
    println!(
        "\nNumbers are medians of the rounds; in parentheses, the least and the most. Ratios are \
         taken round by round.\n{of_latencies}generator, service, redis, others: how many cores \
         each kept busy; others is what takes no part and only disturbs.\nµs each: CPU time of \
         service and Redis for a request."
    );
    let disturbed = |slices| Spread::of(slices, |slice| slice.cores.others()).median > DISTURBED;
    let disturbed = rows.iter().filter(|(_, slices)| disturbed(slices));
    let subjects: Vec<_> = disturbed.map(|(subject, _)| *subject).collect();
    if !subjects.is_empty() {
        println!(
            "Others disturbed this; measure again when they are idle: {}.",
            subjects.join("; ")
        );
    }
}

/// Prints whether a goal was reached. Time is no assertion: it says as much of the machine.
pub(crate) fn goal(what: &str, reached: bool, measured: impl fmt::Display) {
    let verdict = if reached { "reached" } else { "missed" };
    println!("  {verdict:<8} {what}: {measured}");
}

/// The same of a part that is to be left.
pub(crate) fn at_least(what: &str, goal: f64, found: Spread) {
    self::goal(&format!("{what}, at least {goal}"), found.median >= goal, found);
}

/// Prints the same by CPU time for a request.
pub(crate) fn by_cpu_time(slices: &[Slice], base: &[Slice]) {
    let cost = Spread::of_ratios(base, slices, |base, slice| base.cost() / slice.cost());
    println!("           and by CPU time for a request, which others disturb less, {cost}");
}

/// A ratio.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.2}–{:.2})", self.median, self.least, self.most)
    }
}

/// A large number.
struct Thousands(Spread);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Spread { median, least, most }) = self;
        let group = |number: &f64| {
            let number = number.round() as u64;
            match (number / 1000, number % 1000) {
                (0, rest) => rest.to_string(),
                (thousands, rest) => format!("{thousands},{rest:03}"),
            }
        };
        write!(f, "{} ({}–{})", group(median), group(least), group(most))
    }
}
