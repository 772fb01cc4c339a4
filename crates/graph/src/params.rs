//! Generates parameter data from [`Init`], bit for bit the same on every machine (as [`Random`] is).
use crate::{
    DType, Graph, Init, ParamInfo, Random, Tensor,
    memory::{self, NoMemory},
};

/// An error if there is not enough free memory for the data of all parameters.
pub fn require(g: &Graph) -> Result<(), NoMemory> {
    let bytes = g.params.iter().fold(0usize, |sum, p| sum.saturating_add(p.ty.bytes()));
    memory::require(bytes, &format!("the parameters of {}", g.name))
}

/// Data of all parameters, in order. `External` parameters, whose real data is elsewhere, get random data: Normal(0,
/// 0.05²) for floats, 0 or 1 for integers, even odds for bool.
pub fn random_params(g: &Graph) -> Vec<Tensor> {
    g.params.iter().enumerate().map(|(i, p)| param_data(i, p)).collect()
}

/// A random tensor for tests and benchmarks: Normal(0, scale²) for floats, uniform in `0..scale` for integers, even
/// odds for bool.
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
