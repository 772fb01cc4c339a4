//! The generator of random numbers: splitmix64 (Steele, Lea, Flood 2014), and normal numbers by the polar form of
//! Box-Muller.
//!
//! Parameters of graphs, random inputs and tests draw from it. Its numbers depend on the seed alone, bit for bit the
//! same on every machine: it uses only arithmetic that IEEE 754 specifies exactly (no system `ln` or `cos`). Not for
//! secrets.

/// Increment of the generator's state: 2^64 divided by the golden ratio, and odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    spare: Option<f64>,
}

impl Random {
    /// A generator whose numbers depend only on `seed`.
    pub fn new(seed: u64) -> Random {
        Random { state: seed, spare: None }
    }
    /// Uniform over all 64-bit numbers.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mixed(self.state)
    }
    /// Leaves out the next `count` numbers of [`Random::next_u64`].
    pub fn skip(&mut self, count: u64) {
        self.state = self.state.wrapping_add(count.wrapping_mul(STEP));
    }
    /// Uniform in `0..1`, a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Uniform in `0..n`; 0 for n = 0.
    pub fn next_below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next_u64() % n as u64) as usize }
    }
    /// A random item. Panics if there are none.
    pub fn choose<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.next_below(items.len())].clone()
    }
    /// Normal(0, 1), by the polar method.
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (u, v) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                let scale = (-2.0 * ln(s) / s).sqrt();
                self.spare = Some(v * scale);
                return u * scale;
            }
        }
    }
}

/// A number whose bits all depend on those of `z`: the finaliser of splitmix64. A hash of a position, for numbers that
/// do not come in order.
pub fn mixed(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Natural logarithm of a positive normal number by the four basic operations alone: splits it into `m · 2^e` with m
/// near 1, then `ln m = 2 atanh((m-1)/(m+1))` by its series.
fn ln(x: f64) -> f64 {
    let mut exponent = ((x.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let mut m = f64::from_bits((x.to_bits() & 0x000f_ffff_ffff_ffff) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    let t = (m - 1.0) / (m + 1.0);
    let square = t * t;
    let series = (0..12).rev().fold(0.0, |s, k| s * square + 1.0 / (2 * k + 1) as f64);
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * t * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_is_normal_and_fixed() {
        for x in [1e-300, 0.1, 0.5, 0.999, 1.0, 1.5, 7.0] {
            assert!((ln(x) - f64::ln(x)).abs() <= 1e-15 * f64::ln(x).abs().max(1.0), "{x}");
        }
        let mut r = Random::new(1);
        let n = 100_000;
        let xs: Vec<f64> = (0..n).map(|_| r.normal()).collect();
        let mean = xs.iter().sum::<f64>() / n as f64;
        let var = xs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.02 && (var - 1.0).abs() < 0.02, "{mean} {var}");
        assert_eq!(Random::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
    }
}
