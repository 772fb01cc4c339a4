//! Programs with dots of any form, pipelined: the same bits as before, by the interpreter.
use crate::harness::{compiled, int, pointer, scalar};
use kiln_block::{BlockProgram, Elem, Op, Type, passes, text::print};
use kiln_graph::Random;
use kiln_interp::block::{Buffer, run_grid};
use kiln_kernels::{Argument, ArgumentFacts, Number};
use kiln_machine::Arch;

/// A stride or size that the launcher notes to be a multiple of 16.
const PITCH: Argument = Argument::Scalar {
    elem: Number::Int32,
    facts: ArgumentFacts { div: Some(16), equals: None, least: None, most: None, span32: false, noalias: false },
};

/// A kernel, and a launch of it.
struct Case {
    text: &'static str,
    arguments: Vec<Argument>,
    /// Elements of pointers and values of scalars, in the order of the run-time parameters.
    values: Vec<i64>,
    grid: [usize; 3],
}

/// Two dots, the first's result being the second's left operand; sums rescaled in between.
const FLASH: &str = "def flash(q, k, v, out, n, stride, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rd = tl.arange(0, D)
    x = tl.load(q + rm[:, None] * stride + rd[None, :], mask=rm[:, None] < n, other=0.0)
    m = tl.full([BM], -float('inf'), tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for at in range(0, n, BN):
        inside = at + rn < n
        y = tl.load(k + (at + rn)[None, :] * stride + rd[:, None], mask=inside[None, :], other=0.0)
        s = tl.where(inside[None, :], tl.dot(x, y), -float('inf'))
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.math.exp2(s - mn[:, None])
        a = tl.math.exp2(m - mn)
        l = l * a + tl.sum(p, 1)
        z = tl.load(v + (at + rn)[:, None] * stride + rd[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(z.dtype), z, acc * a[:, None])
        m = mn
    tl.store(out + rm[:, None] * stride + rd[None, :], (acc / l[:, None]).to(x.dtype), mask=rm[:, None] < n)
";

/// A computed left operand; carried pointers; sums in flight where nothing is computed.
const COMPUTED: &str =
    "def product(a, b, c, n, sa, sb, SQUARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rk = tl.arange(0, BK)
    pa = a + rm[:, None] * sa + rk[None, :]
    pb = b + rk[:, None] * sb + rn[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(n):
        x = tl.load(pa)
        if SQUARE:
            x = x * x
        acc += tl.dot(x, tl.load(pb))
        pa += BK
        pb += BK * sb
    tl.store(c + rm[:, None] * BN + rn[None, :], acc)
";

/// Rows and blocks through indices, in a loop over tiles.
const INDEXED: &str =
    "def indexed(a, rows, pages, b, c, n, tiles, sa, sb, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rn = tl.arange(0, BN)
    rk = tl.arange(0, BK)
    for tile in range(tiles):
        rm = tile * BM + tl.arange(0, BM)
        row = tl.load(rows + rm)
        acc = tl.full([BM, BN], 0.5, tl.float32)
        for i in range(0, n):
            x = tl.load(a + row[:, None] * sa + (i * BK + rk)[None, :])
            page = tl.load(pages + i)
            y = tl.load(b + (page * BK + rk)[:, None] * sb + rn[None, :])
            acc = tl.dot(x, y, acc)
        tl.store(c + rm[:, None] * BN + rn[None, :], acc)
";

/// Three dots of the same blocks, and a state that is stored for the next iteration's.
const STATE: &str = "def state(q, k, v, out, n, D: tl.constexpr, C: tl.constexpr):
    rc = tl.arange(0, C)
    rd = tl.arange(0, D)
    h = tl.zeros([D, D], tl.float32)
    for t in range(0, n, C):
        at = (t + rc)[:, None] * D + rd[None, :]
        x = tl.load(q + at)
        y = tl.load(k + at)
        z = tl.load(v + at)
        s = tl.where(rc[:, None] >= rc[None, :], tl.dot(x, tl.trans(y)), 0.0)
        o = tl.dot(s.to(z.dtype), z) + tl.dot(x, h.to(x.dtype))
        h += tl.dot(tl.trans(y), z)
        tl.store(out + at, o.to(z.dtype))
";

/// Bytes and their scales.
const SCALED: &str = "def scaled(a, b, s, c, n, stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(n):
        x = tl.load(a + rm[:, None] * stride + (i * BK + rk)[None, :])
        y = tl.load(b + (i * BK + rk)[:, None] + rn[None, :] * stride)
        acc += tl.dot(x, y).to(tl.float32) * tl.load(s + i * BM + tl.arange(0, BM))[:, None]
    tl.store(c + rm[:, None] * BN + rn[None, :], acc)
";

/// Products of sizes that lie in memory, from and to parts of one array, which each loop over K leaves alone.
const GROUPED: &str = "def grouped(data, starts, sizes, groups, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for g in range(groups):
        M = tl.load(sizes + g * 3)
        N = tl.multiple_of(tl.load(sizes + g * 3 + 1), 16)
        K = tl.multiple_of(tl.load(sizes + g * 3 + 2), 16)
        a = data + tl.multiple_of(tl.load(starts + g * 3), 16)
        b = data + tl.load(starts + g * 3 + 1)
        c = data + tl.load(starts + g * 3 + 2)
        for tile in range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0)):
            m = tile // tl.cdiv(N, BN) * BM + tl.arange(0, BM)
            n = tile % tl.cdiv(N, BN) * BN + tl.arange(0, BN)
            k = tl.arange(0, BK)
            pa = a + m[:, None] * K + k[None, :]
            pb = b + k[:, None] * N + n[None, :]
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for start in range(0, K, BK):
                tl.multiple_of(pb, [16, 16])
                x = tl.load(pa, mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
                y = tl.load(pb, mask=(start + k[:, None] < K) & (n[None, :] < N), other=0.0)
                acc = tl.dot(x, y, acc)
                pa += BK
                pb += BK * N
            inside = (m[:, None] < M) & (n[None, :] < N)
            tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16), mask=inside)
";
/// Sizes of its products, and elements between their matrices.
const GROUPED_SIZES: [i64; 9] = [100, 64, 80, 30, 48, 0, 65, 80, 208];
const GROUPED_APART: i64 = 1 << 14;

/// A right operand that is computed from bytes, once or twice in an iteration, while dots before it are in flight.
const DEQUANTISED: &str = "def dequantised(a, b, s, c, n, half, sa, sb, TWICE: tl.constexpr, BM: tl.constexpr,
                BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(n):
        k = i * BK + rk
        bits = tl.load(b + k[:, None] * sb + rn[None, :], mask=rn[None, :] < sb, other=0)
        scale = tl.load(s + i * BN + rn)[None, :]
        at = a + rm[:, None] * sa + k[None, :]
        w = (bits & 15).to(tl.float32) - 8.0
        acc = tl.dot(tl.load(at), (w * scale).to(tl.float16), acc)
        if TWICE:
            w = (bits >> 4).to(tl.float32) - scale
            acc = tl.dot(tl.load(at + half // 2), w.to(tl.float16), acc)
    tl.store(c + rm[:, None] * BN + rn[None, :], acc)
";

/// Rows of f32 against rows, and their squares, from tiles that dots read.
const SQUARES: &str = "def squares(a, b, c, n, m, stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    x2 = tl.zeros([BM], tl.float32)
    for at in range(0, n, BK):
        k = at + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * stride + k[None, :], mask=(rm[:, None] < m) & (k[None, :] < n), other=0.0)
        y = tl.load(b + rn[:, None] * stride + k[None, :], mask=k[None, :] < n, other=0.0)
        acc = tl.dot(x, y.T, acc)
        x2 += tl.sum(x * x, axis=1)
    tl.store(c + rm[:, None] * BN + rn[None, :], x2[:, None] - 2.0 * acc)
";

/// Few rows against rows through a table, transposed, under a mask.
const PAGED: &str =
    "def paged(q, k, v, pages, out, n, stride, D: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.arange(0, BM)
    rd = tl.arange(0, D)
    x = tl.load(q + rm[:, None] * stride + rd[None, :])
    acc = tl.zeros([BM, D], tl.float32)
    for at in range(0, n, BN):
        rn = at + tl.arange(0, BN)
        page = tl.load(pages + rn // PAGE, mask=rn < n, other=0)
        row = page * PAGE + rn % PAGE
        y = tl.load(k + row[None, :] * stride + rd[:, None], mask=rn[None, :] < n, other=0.0)
        z = tl.load(v + row[:, None] * stride + rd[None, :], mask=rn[:, None] < n, other=0.0)
        acc = tl.dot(tl.dot(x, y).to(z.dtype), z, acc)
    tl.store(out + rm[:, None] * stride + rd[None, :], acc.to(x.dtype))
";

fn cases() -> Vec<Case> {
    let [f16, bf16, f32, i32, i8] = [Number::Float16, Number::BFloat16, Number::Float32, Number::Int32, Number::Int8];
    let u8 = Number::UInt8;
    let sizes = |all: &[i128]| all.iter().map(|n| int(*n)).collect::<Vec<_>>();
    let case = |text, pointers: &[Number], numbers: Vec<Argument>, blocks: Vec<Argument>, values: &[i64], grid| {
        let arguments = pointers.iter().map(|n| pointer(*n)).chain(numbers).chain(blocks).collect();
        Case { text, arguments, values: values.to_vec(), grid }
    };
    let mut all = vec![];
    for (n, d) in [(1, 64), (100, 64), (256, 64), (200, 128)] {
        let many = n * d;
        let values = [many, many, many, many, n, d];
        let tiles = [(n as usize).div_ceil(64), 1, 1];
        all.push(case(FLASH, &[f16; 4], vec![scalar(i32), PITCH], sizes(&[d.into(), 64, 64]), &values, tiles));
    }
    for (n, square, element) in [(0, 0, f16), (1, 0, bf16), (2, 0, f16), (3, 1, f16), (7, 0, f16), (8, 1, bf16)] {
        let k = n.max(1) * 64;
        let values = [128 * k, k * 64, 128 * 64, n, k, 64];
        let numbers = vec![scalar(i32), PITCH, PITCH];
        all.push(case(COMPUTED, &[element, element, f32], numbers, sizes(&[square, 64, 64, 64]), &values, [2, 1, 1]));
    }
    // Too many sums for two blocks on a multiprocessor: the operand is stored while dots are in flight.
    for n in [1, 4] {
        let values = [128 * n * 64, n * 64 * 256, 128 * 256, n, n * 64, 256];
        let numbers = vec![scalar(i32), PITCH, PITCH];
        all.push(case(COMPUTED, &[f16, f16, f32], numbers, sizes(&[1, 128, 256, 64]), &values, [1; 3]));
    }
    for (n, tiles) in [(1, 2), (5, 3)] {
        let values = [200 * n * 64, tiles * 64, n, n * 64 * 64, tiles * 64 * 64, n, tiles, n * 64, 64];
        let numbers = vec![scalar(i32), scalar(i32), PITCH, PITCH];
        all.push(case(INDEXED, &[f16, i32, i32, f16, f32], numbers, sizes(&[64, 64, 64]), &values, [1; 3]));
    }
    for n in [64, 320] {
        let values = [n * 64, n * 64, n * 64, n * 64, n];
        all.push(case(STATE, &[bf16; 4], vec![PITCH], sizes(&[64, 64]), &values, [1; 3]));
    }
    for instances in [1, 3] {
        let values = [9 * GROUPED_APART, 9, 9, 3];
        all.push(case(GROUPED, &[f16, i32, i32], vec![scalar(i32)], sizes(&[64, 64, 64]), &values, [instances, 1, 1]));
    }
    for n in [1, 4] {
        let values = [128 * n * 128, 64 * n * 128, n * 64, 128 * 64, n, n * 128];
        all.push(case(
            SCALED,
            &[i8, i8, f32, f32],
            vec![scalar(i32), PITCH],
            sizes(&[64, 64, 128]),
            &values,
            [2, 1, 1],
        ));
    }
    for (n, twice, [m, columns]) in [(1, 0, [64, 64]), (5, 0, [64, 128]), (2, 1, [64, 128]), (7, 1, [128, 64])] {
        let pitch = 128 * n;
        let values = [2 * m * pitch, n * 64 * columns, n * columns, 2 * m * columns, n, pitch, pitch, columns];
        let numbers = vec![scalar(i32), PITCH, PITCH, PITCH];
        let blocks = sizes(&[twice, m.into(), columns.into(), 64]);
        all.push(case(DEQUANTISED, &[f16, u8, f32, f32], numbers, blocks, &values, [2, 1, 1]));
    }
    for (n, m) in [(0, 64), (64, 128), (208, 100)] {
        let values = [128 * 208, 64 * 208, 128 * 64, n, m, 208];
        let numbers = vec![PITCH, scalar(i32), PITCH];
        all.push(case(SQUARES, &[f32; 3], numbers, sizes(&[64, 64, 32]), &values, [2, 1, 1]));
    }
    for (n, d) in [(1, 64), (100, 128), (256, 64)] {
        let values = [64 * d, 16 * 16 * d, 16 * 16 * d, 16, 64 * d, n, d];
        let blocks = sizes(&[d.into(), 16, 64, 64]);
        all.push(case(PAGED, &[f16, f16, f16, i32, f16], vec![scalar(i32), PITCH], blocks, &values, [1; 3]));
    }
    all
}

impl Case {
    fn buffers(&self, program: &BlockProgram) -> Vec<Buffer> {
        let mut r = Random::new(7);
        let params = program.params.iter().zip(&self.values);
        let made = params.map(|(p, n)| match (p.name.as_str(), program.ty(p.value)) {
            (name, Type::Ptr { elem, .. }) => {
                let count = *n as usize;
                let of = |r: &mut Random, at: usize| match name {
                    "sizes" => GROUPED_SIZES[at] as f64,
                    "starts" => (at as i64 * GROUPED_APART) as f64,
                    "rows" => r.next_below(200) as f64,
                    "pages" => r.next_below(count) as f64,
                    _ if elem.is_int() => r.next_below(17) as f64 - 8.0,
                    _ => r.next_below(17) as f64 / 8.0 - 1.0,
                };
                let values = (0..count).map(|at| of(&mut r, at)).collect::<Vec<f64>>();
                Buffer::from_f64(*elem, &[count], values)
            }
            _ => Buffer::from_f64(Elem::I32, &[1], vec![*n as f64]),
        });
        made.collect()
    }
    fn result(&self, program: &BlockProgram) -> Vec<Vec<u8>> {
        let mut buffers = self.buffers(program);
        if let Err(error) = run_grid(program, self.grid, &mut buffers) {
            panic!("{error}\n{}", print(program));
        }
        buffers.into_iter().map(|b| b.bytes).collect()
    }
}

fn count(program: &BlockProgram, wanted: impl Fn(&Op) -> bool) -> usize {
    let mut found = 0;
    program.walk(&mut |_, d| found += usize::from(wanted(&d.op)));
    found
}

#[test]
fn pipelines_keep_every_bit() {
    for case in cases() {
        let mut program = compiled(case.text, case.arguments.clone()).unwrap_or_else(|e| panic!("{e}")).program;
        passes::canonicalise(&mut program).unwrap();
        let wanted = case.result(&program);
        for arch in [Arch::Sm80, Arch::Sm90a] {
            let made = passes::to_pipeline(&program, arch.machine());
            let made = made.unwrap_or_else(|why| panic!("{why}\n{}", print(&program)));
            assert_eq!(kiln_block::text::parse(&print(&made)).as_ref(), Ok(&made));
            assert!(count(&made, |op| *op == Op::AsyncCopy) > 0, "{}", print(&made));
            let dots = count(&made, |op| matches!(op, Op::Dot { .. }));
            assert_eq!(dots == 0, arch == Arch::Sm90a, "{}", print(&made));
            assert!(case.result(&made) == wanted, "{:?}\n{}\n{}", case.values, print(&program), print(&made));
        }
    }
}

/// With operands that are computed, dots of an iteration are in flight while the next one computes; one stored tile
/// then has two stages, and two have one each.
#[test]
fn computed_operands_overlap_dots() {
    let computes = |c: &Case| c.text == DEQUANTISED || c.text == COMPUTED && c.values[5] == 256;
    for (case, stages) in cases().into_iter().filter(computes).zip([2, 2, 2, 2, 1, 1]) {
        let mut program = compiled(case.text, case.arguments).unwrap_or_else(|e| panic!("{e}")).program;
        passes::canonicalise(&mut program).unwrap();
        let made = passes::to_pipeline(&program, Arch::Sm90a.machine()).unwrap_or_else(|why| panic!("{why}"));
        assert!(count(&made, |op| *op == Op::WgmmaToken) > 0, "{}", print(&made));
        let mut stored = vec![];
        made.walk(&mut |_, d| {
            if d.op == Op::SharedStore
                && let Type::Shared { stages, .. } = made.ty(d.args[0])
            {
                stored.push(*stages);
            }
        });
        assert!(!stored.is_empty() && stored.iter().all(|n| *n == stages), "{stored:?}\n{}", print(&made));
    }
}

/// Addresses of a transposed tile are computed where they are copied from.
#[test]
fn addresses_are_not_converted() {
    for rows in [16, 64] {
        let blocks = [128, 16, rows, 64].map(int);
        let pointers = [Number::Float16, Number::Float16, Number::Float16, Number::Int32, Number::Float16].map(pointer);
        let arguments = pointers.into_iter().chain([scalar(Number::Int32), PITCH]).chain(blocks).collect();
        let mut program = compiled(PAGED, arguments).unwrap_or_else(|e| panic!("{e}")).program;
        passes::canonicalise(&mut program).unwrap();
        let mut made = passes::to_pipeline(&program, Arch::Sm90a.machine()).unwrap_or_else(|why| panic!("{why}"));
        passes::run(&["layout"], &mut made, Arch::Sm90a.machine()).unwrap();
        made.walk(&mut |_, d| {
            let moves = d.op == Op::ConvertLayout && matches!(made.ty(d.args[0]), Type::Ptr { .. });
            assert!(!moves, "{}", print(&made));
        });
    }
}
