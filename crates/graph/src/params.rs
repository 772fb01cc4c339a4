//! Generates parameter data from [`Init`], bit for bit the same on every machine.
//!
//! Uses only arithmetic that IEEE 754 specifies exactly (no system `ln` or `cos`): splitmix64 and the polar form of Box-Muller.
use crate::{
    DType, Graph, Init, ParamInfo, Tensor,
    memory::{self, NoMemory},
};

/// An error if there is not enough free memory for the data of all parameters.
pub fn require(g: &Graph) -> Result<(), NoMemory> {
    let bytes = g.params.iter().fold(0usize, |sum, p| sum.saturating_add(p.ty.bytes()));
    memory::require(bytes, &format!("the parameters of {}", g.name))
}

/// Data of all parameters, in order. `External` parameters, whose real data is elsewhere, get random data: Normal(0, 0.05²) for floats,
/// 0 or 1 for integers, even odds for bool.
pub fn random_params(g: &Graph) -> Vec<Tensor> {
    g.params.iter().enumerate().map(|(i, p)| param_data(i, p)).collect()
}

/// A random tensor for tests and benchmarks: Normal(0, scale²) for floats, uniform in `0..scale` for integers, even odds for bool.
pub fn random_tensor(ty: crate::Type, seed: u64, scale: f64) -> Tensor {
    let mut random = Random::new(seed);
    let count = ty.count();
    match ty.dtype {
        DType::Bool => Tensor::from_f64(ty, (0..count).map(|_| (random.next_u64() >> 63) as f64)),
        dtype if dtype.is_int() => {
            let below = if scale >= 1.0 { scale as u64 } else { 1 };
            Tensor::from_f64(ty, (0..count).map(|_| (random.next_u64() % below) as f64))
        }
        _ => Tensor::from_f64(ty, (0..count).map(|_| random.normal() * scale)),
    }
}

/// Data of one parameter; `index` is its position in [`Graph::params`].
pub fn param_data(index: usize, p: &ParamInfo) -> Tensor {
    let seeded = |seed: u64| seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let ty = p.ty.clone();
    match &p.init {
        Init::External => random_tensor(ty, seeded(0), if p.ty.dtype.is_float() { 0.05 } else { 2.0 }),
        Init::Random { seed, scale } => random_tensor(ty, seeded(*seed), scale.as_f64()),
        Init::Fill(s) => from_scalars(p, std::iter::repeat_n(*s, p.ty.count())),
        Init::Data(data) => from_scalars(p, data.iter().copied()),
    }
}

fn from_scalars(p: &ParamInfo, values: impl Iterator<Item = crate::Scalar>) -> Tensor {
    let mut t = Tensor::zeros(p.ty.clone());
    for (i, s) in values.take(p.ty.count()).enumerate() {
        match s {
            crate::Scalar::Int(v) => t.set_i64(i, v),
            other => t.set_f64(i, other.as_f64()),
        }
    }
    t
}

/// A random number generator: splitmix64 (Steele, Lea, Flood 2014).
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
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in `0..1`, a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Uniform in `0..n`; 0 for n = 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next_u64() % n as u64) as usize }
    }
    /// A random item. Panics if there are none.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
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

/// Natural logarithm of a positive normal number by the four basic operations alone: splits it into `m · 2^e` with m near 1, then
/// `ln m = 2 atanh((m-1)/(m+1))` by its series.
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
