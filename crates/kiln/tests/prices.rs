//! Prices of kernels written by hand, for a machine that need not be there: which of two configurations is cheaper.
use kiln::kernels::{self, Failure, LaunchPrice, LaunchValues, Options, file::Described};
use kiln::{CompileOptions, Target};

const KERNELS: &str = r#"
import kiln.language as tl

def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    columns = tl.cdiv(N, BN)
    m, n = tl.program_id(0) // columns, tl.program_id(0) % columns
    i, j, k = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    pa = a + i[:, None] * K + k[None, :]
    pb = b + k[:, None] * N + j[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        x = tl.load(pa, mask=(i[:, None] < M) & (k[None, :] < K - step * BK), other=0.0)
        y = tl.load(pb, mask=(k[:, None] < K - step * BK) & (j[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        pa += BK
        pb += BK * N
    tl.store(c + i[:, None] * N + j[None, :], acc.to(tl.float16), mask=(i[:, None] < M) & (j[None, :] < N))

def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)

def strided(x, out, n, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i * STRIDE, mask=i < n), mask=i < n)
"#;

/// A kernel of [`KERNELS`] with described arguments; those that are tensors have these bytes.
struct Case {
    kernel: &'static str,
    arguments: String,
    bytes: i64,
    grid: usize,
    warps: usize,
}

impl Case {
    fn price(&self, target: Target) -> LaunchPrice {
        self.priced(target).unwrap_or_else(|e| panic!("{} {}: {e}", self.kernel, self.arguments))
    }
    fn priced(&self, target: Target) -> Result<LaunchPrice, Failure> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("priced.py");
        std::fs::write(&path, KERNELS).expect("is written");
        let unit = kernels::file::open(&format!("{}:{}", path.display(), self.kernel))?;
        let described = Described::parse(&unit, &self.arguments)?;
        let options = Options { warps: self.warps, ..Options::default() };
        let target = CompileOptions { target, ..CompileOptions::default() };
        let stages = kernels::stages(&unit, &described.signature, &options, &target)?;
        let LaunchValues { grid, mut parameters } = described.launch(stages.parameters(), [self.grid, 1, 1]);
        for (number, param) in parameters.iter_mut().zip(&stages.program().params) {
            let is_tensor = matches!(stages.program().ty(param.value), kiln_block::Type::Ptr { .. });
            *number = number.or(is_tensor.then_some(self.bytes));
        }
        Ok(stages.price(&LaunchValues { grid, parameters }))
    }
}

fn matmul(size: usize, tile: [usize; 3], warps: usize) -> Case {
    let [m, n, k] = tile;
    let arguments = format!("*f16,*f16,*f16,i32={size},i32={size},i32={size},{m},{n},{k}");
    let grid = size.div_ceil(m) * size.div_ceil(n);
    Case { kernel: "matmul", arguments, bytes: 2 * (size * size) as i64, grid, warps }
}

fn add(size: usize, block: usize, warps: usize) -> Case {
    let arguments = format!("*f32,*f32,*f32,i32={size},{block}");
    Case { kernel: "add", arguments, bytes: 4 * size as i64, grid: size.div_ceil(block), warps }
}

/// That prices rise from one case to the next.
fn rises(target: Target, cases: &[Case]) {
    let prices: Vec<LaunchPrice> = cases.iter().map(|case| case.price(target)).collect();
    let us: Vec<f64> = prices.iter().map(|price| price.us).collect();
    assert!(us.windows(2).all(|pair| pair[0] < pair[1]), "{us:?} of {prices:#?}");
}

#[test]
fn large_matmuls_are_cheapest_in_large_tiles() {
    let tiles = [([128, 256, 64], 8), ([128, 128, 64], 4), ([64, 64, 32], 4), ([32, 32, 32], 4)];
    rises(Target::Sm90a, &tiles.map(|(tile, warps)| matmul(4096, tile, warps)));
    rises(Target::Sm80, &[([128, 128, 32], 8), ([64, 64, 32], 4), ([16, 32, 32], 2)].map(|(t, w)| matmul(4096, t, w)));
}

#[test]
fn small_matmuls_are_cheapest_where_tiles_fill_the_machine() {
    rises(Target::Sm90a, &[matmul(512, [64, 64, 64], 4), matmul(512, [128, 256, 64], 8)]);
}

#[test]
fn streams_are_bound_by_memory_and_tiny_blocks_by_instances() {
    let size = 1 << 26;
    let wide = add(size, 1024, 4).price(Target::Sm90a);
    assert_eq!(wide.bound, "memory", "{wide:#?}");
    let three_tensors = 3.0 * 4.0 * size as f64;
    assert_eq!(wide.footprint.bytes, three_tensors);
    rises(Target::Sm90a, &[add(size, 1024, 4), add(size, 32, 1)]);
    rises(Target::Cpu, &[add(size, 1024, 4), add(size, 4, 4)]);
}

#[test]
fn scattered_accesses_touch_whole_sectors() {
    let case = |stride: usize| {
        let arguments = format!("*f32,*f32,i32=1048576,{stride},1024");
        Case { kernel: "strided", arguments, bytes: 1 << 30, grid: 1024, warps: 4 }
    };
    let [dense, scattered] = [1, 64].map(|stride| case(stride).price(Target::Sm90a));
    assert_eq!(dense.footprint.sectors, 2.0 * 4096.0);
    // Of a sector of 32 bytes one element of 4 is read.
    assert_eq!(scattered.footprint.sectors, 4096.0 * 8.0 + 4096.0);
    assert!(dense.us < scattered.us);
}

#[test]
fn loops_over_launch_values_count() {
    let [short, long] = [1024, 2048].map(|size| matmul(size, [64, 64, 32], 4).price(Target::Sm80));
    assert_eq!(long.footprint.waits - short.footprint.waits, (2048 - 1024) as f64 / 32.0);
    assert!(!short.footprint.is_lower_bound);
}
