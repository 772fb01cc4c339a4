//! Processor time that other processes took during a measurement: under load, the slower side of a comparison may only
//! have waited for a core. Read from `/proc` on Linux; unknown elsewhere.

/// Clock ticks of all cores since boot (in total, and busy), and of this process since its start.
pub struct Ticks {
    all: u64,
    busy: u64,
    own: u64,
}

impl Ticks {
    pub fn now() -> Option<Ticks> {
        parse(&std::fs::read_to_string("/proc/stat").ok()?, &std::fs::read_to_string("/proc/self/stat").ok()?)
    }
    /// Share of all cores' time that other processes have had since `start`.
    pub fn others_since(&self, start: &Ticks) -> f64 {
        let all = self.all.saturating_sub(start.all).max(1);
        let own = self.own.saturating_sub(start.own);
        self.busy.saturating_sub(start.busy).saturating_sub(own) as f64 / all as f64
    }
}

/// From `/proc/stat` and `/proc/self/stat` (proc(5)).
fn parse(stat: &str, own: &str) -> Option<Ticks> {
    // user, nice, system, idle, iowait, irq, softirq, steal.
    let fields: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
    let all = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    // Fields 14 and 15 are user and system time. Field 2 is the program's name in parentheses, which may contain
    // anything.
    let mut after = own.rsplit_once(')')?.1.split_whitespace().skip(11).flat_map(str::parse::<u64>);
    Some(Ticks { all, busy: all - idle, own: after.next()? + after.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_others_is_neither_idle_nor_own_time() {
        let own = |t: u64| format!("1 (a) b) R 0 0 0 0 0 0 0 0 0 0 {t} 5 0 0");
        let start = parse("cpu  100 0 10 800 90 0 0 0\ncpu0 1", &own(10)).expect("reads");
        let end = parse("cpu  200 0 10 890 100 0 0 0\ncpu0 1", &own(60)).expect("reads");
        // 200 ticks: 100 idle, 50 here, 50 elsewhere.
        assert_eq!(end.others_since(&start), 0.25);
    }
}
