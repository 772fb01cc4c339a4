//! Matmuls with sizes and strides of the launch, as people write them: in roles of warpgroups they give every bit that
//! they gave before. Forms and sizes are drawn at random.
use crate::harness::{compiled, int, pointer, scalar, zeros};
use kiln_block::{BlockProgram, Elem, Op, passes, text::print};
use kiln_graph::Random;
use kiln_interp::block::{Buffer, run_grid};
use kiln_kernels::{Argument, ArgumentFacts, Number};
use kiln_machine::Arch;

/// Of a tile.
const COLUMNS: usize = 64;
const DEPTH: usize = 64;

/// A kernel and a launch of it.
#[derive(Debug)]
struct Matmul {
    text: String,
    /// Rows of a tile.
    rows: usize,
    size: [usize; 3],
    /// The right operand's rows lie along N, as `[N, K]`.
    transposed: bool,
    grid: [usize; 3],
    seed: u64,
}

/// A stride that the launcher notes to be a multiple of 16.
const PITCH: Argument = Argument::Scalar {
    elem: Number::Int32,
    facts: ArgumentFacts { div: Some(16), equals: None, least: None, most: None, span32: false, noalias: false },
};
const ONE: Argument = Argument::Scalar {
    elem: Number::Int32,
    facts: ArgumentFacts { div: None, equals: Some(1), least: None, most: None, span32: false, noalias: false },
};

const HEADER: &str = "def matmul(a, b, bias, c, M, N, K, sam, sak, sbk, sbn, scm, BM: tl.constexpr, BN: \
                      tl.constexpr, BK: tl.constexpr):
";
const LOOP: &str = "    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0)):
";

/// The same by descriptors that the kernel makes: these, and what is done for a tile.
fn described(order: &str, epilogue: &str, transposed: bool) -> (String, String) {
    let (right, load) = match transposed {
        true => ("[N, K], [sbn, 1], [BN, BK]", "load([n * BN, i]).T"),
        false => ("[K, N], [sbk, 1], [BK, BN]", "load([i, n * BN])"),
    };
    let descriptors = format!(
        "    left = tl.make_tensor_descriptor(a, [M, K], [sam, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, {right})
    out = tl.make_tensor_descriptor(c, [M, N], [scm, 1], [BM, BN])
"
    );
    let body = format!(
        "    {order}
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, K, BK):
        acc = tl.dot(left.load([m * BM, i]), right.{load}, acc)
    cn = n * BN + tl.arange(0, BN)
    {epilogue}
    out.store([m * BM, n * BN], acc.to(c.dtype.element_ty))
"
    );
    (descriptors, body)
}

impl Matmul {
    fn random(seed: u64) -> Matmul {
        let mut r = Random::new(seed);
        let rows = r.choose(&[64, 128]);
        let size = [1 + r.next_below(2 * rows), 1 + r.next_below(150), r.choose(&[0, 1, 64, 65, 128, 200])];
        let tiles = [size[0].div_ceil(rows), size[1].div_ceil(COLUMNS)];
        let (order, grid) = match r.next_below(3) {
            0 => ("m, n = tl.program_id(0), tl.program_id(1)", [tiles[0], tiles[1], 1]),
            1 => (
                "m, n = tl.program_id(0) // tl.cdiv(N, BN), tl.program_id(0) % tl.cdiv(N, BN)",
                [tiles[0] * tiles[1], 1, 1],
            ),
            _ => (
                "group = 2 * tl.cdiv(N, BN)
    first = tl.program_id(0) // group * 2
    some = min(tl.cdiv(M, BM) - first, 2)
    m = first + tl.program_id(0) % group % some
    n = tl.program_id(0) % group // some",
                [tiles[0] * tiles[1], 1, 1],
            ),
        };
        // Rows beyond the array are read from its beginning, or masked.
        let wrapped = r.choose(&[true, false]);
        let (wrap_m, wrap_n) = if wrapped { (" % M", " % N") } else { ("", "") };
        let (mask_m, mask_n) = if wrapped { ("", "") } else { (" & (am[:, None] < M)", " & (bn[None, :] < N)") };
        let carried = r.choose(&[true, false]);
        let (steps, done, at_a, at_b) = match carried {
            true => ("0, tl.cdiv(K, BK)", "i * BK", "pa", "pb"),
            false => ("0, K, BK", "i", "pa + i * sak", "pb + i * sbk"),
        };
        let advance = if carried { "pa += BK * sak\n        pb += BK * sbk" } else { "" };
        let epilogue = r.choose(&[
            "",
            "acc = tl.where(acc > 0, acc, 0.25 * acc)",
            "acc += tl.load(bias + cn, mask=cn < N, other=0.0)[None, :]",
        ]);
        let (hint, hint_end) = r.choose(&[("", ""), ("tl.max_contiguous(tl.multiple_of(", ", BM), BM)")]);
        // Instances with several tiles: in order of their number.
        let persistent = !order.contains("program_id(1)") && r.choose(&[true, false]);
        let body = format!(
            "    {order}
    am = {hint}(m * BM + tl.arange(0, BM)){wrap_m}{hint_end}
    bn = (n * BN + tl.arange(0, BN)){wrap_n}
    k = tl.arange(0, BK)
    pa = a + am[:, None] * sam + k[None, :] * sak
    pb = b + k[:, None] * sbk + bn[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range({steps}):
        left = tl.load({at_a}, mask=(k[None, :] < K - {done}){mask_m}, other=0.0)
        right = tl.load({at_b}, mask=(k[:, None] < K - {done}){mask_n}, other=0.0)
        acc = tl.dot(left, right, acc)
        {advance}
    cm = m * BM + tl.arange(0, BM)
    cn = n * BN + tl.arange(0, BN)
    {epilogue}
    inside = (cm[:, None] < M) & (cn[None, :] < N)
    tl.store(c + cm[:, None] * scm + cn[None, :], acc.to(c.dtype.element_ty), mask=inside)
"
        );
        let transposed = r.choose(&[true, false]);
        let (descriptors, body) = match r.next_below(4) {
            0 => described(order, epilogue, transposed),
            _ => (String::new(), body),
        };
        let text = match persistent {
            true => {
                let body = body.replace("tl.program_id(0)", "tile").replace("    ", "        ");
                format!("{HEADER}{descriptors}{LOOP}{body}")
            }
            false => format!("{HEADER}{descriptors}{body}"),
        };
        let grid = if persistent { [1 + r.next_below(3), 1, 1] } else { grid };
        Matmul { text, rows, size, transposed, grid, seed }
    }
    /// Elements from row to row.
    fn pitches(&self) -> [usize; 3] {
        let [_, n, k] = self.size;
        [k.max(1), if self.transposed { k.max(1) } else { n }, n].map(|n| n.next_multiple_of(16))
    }
    fn arguments(&self) -> Vec<Argument> {
        let [f16, f32, i32] = [Number::Float16, Number::Float32, Number::Int32];
        let right = if self.transposed { [ONE, PITCH] } else { [PITCH, ONE] };
        let sizes = [int(self.rows as i128), int(COLUMNS as i128), int(DEPTH as i128)];
        let pointers = [f16, f16, f32, f16].map(pointer);
        let numbers = [scalar(i32), scalar(i32), scalar(i32), PITCH, ONE];
        pointers.into_iter().chain(numbers).chain(right).chain([PITCH]).chain(sizes).collect()
    }
    /// What the program's parameters hold.
    fn buffers(&self, program: &BlockProgram) -> Vec<Buffer> {
        let mut r = Random::new(self.seed + 1000);
        let ([m, n, k], [pa, pb, pc]) = (self.size, self.pitches());
        let mut values =
            |count: usize| -> Vec<f64> { (0..count).map(|_| r.next_below(17) as f64 / 8.0 - 1.0).collect() };
        let floats = |elem, values: Vec<f64>| Buffer::from_f64(elem, &[values.len()], values);
        let named = |name: &str| match name {
            "a" => floats(Elem::F16, values(m.max(1) * pa)),
            "b" => floats(Elem::F16, values(if self.transposed { n } else { k.max(1) } * pb)),
            "bias" => floats(Elem::F32, values(n)),
            "c" => zeros(Elem::F16, m * pc),
            _ => {
                let number = match name {
                    "M" => m,
                    "N" => n,
                    "K" => k,
                    "sam" => pa,
                    "sbk" | "sbn" if (name == "sbn") == self.transposed => pb,
                    "scm" => pc,
                    _ => 1,
                };
                Buffer::from_f64(Elem::I32, &[1], vec![number as f64])
            }
        };
        let passed = program.params.iter().filter(|p| p.launch_array.is_none());
        passed.map(|p| p.name.as_str()).map(named).collect()
    }
    fn result(&self, program: &BlockProgram) -> Vec<u8> {
        let mut buffers = self.buffers(program);
        if let Err(error) = run_grid(program, self.grid, &mut buffers) {
            panic!("{self:?}: {error}\n{}", print(program));
        }
        let c = program.params.iter().position(|p| p.name == "c").unwrap();
        buffers.swap_remove(c).bytes
    }
}

fn count(program: &BlockProgram, wanted: impl Fn(&Op) -> bool) -> usize {
    let mut found = 0;
    program.walk(&mut |_, d| found += usize::from(wanted(&d.op)));
    found
}

#[test]
fn roles_keep_every_bit() {
    for seed in 0..24 {
        let matmul = Matmul::random(seed);
        let mut program = compiled(&matmul.text, matmul.arguments()).unwrap_or_else(|e| panic!("{e}")).program;
        passes::canonicalise(&mut program).unwrap();
        let roles = passes::to_warpgroups(&program, Arch::Sm90a.machine());
        let roles = roles.unwrap_or_else(|why| panic!("{matmul:?}: {why}\n{}", print(&program))).roles;
        assert_eq!(kiln_block::text::parse(&print(&roles)).as_ref(), Ok(&roles));
        assert!(count(&roles, |op| matches!(op, Op::Load(..))) <= 1, "{}", print(&roles));
        assert!(count(&roles, |op| matches!(op, Op::Wgmma { .. })) > 0, "{}", print(&roles));
        assert!(matmul.result(&roles) == matmul.result(&program), "{matmul:?}\n{}\n{}", print(&program), print(&roles));
    }
}

/// The same matmuls where roles do not apply, or are not there: with copies ahead.
#[test]
fn pipelines_of_matmuls_keep_every_bit() {
    for seed in 100..124 {
        let matmul = Matmul::random(seed);
        let mut program = compiled(&matmul.text, matmul.arguments()).unwrap_or_else(|e| panic!("{e}")).program;
        passes::canonicalise(&mut program).unwrap();
        let wanted = matmul.result(&program);
        for arch in [Arch::Sm80, Arch::Sm90a] {
            let made = passes::to_pipeline(&program, arch.machine());
            let made = made.unwrap_or_else(|why| panic!("{matmul:?}: {why}\n{}", print(&program)));
            assert!(matmul.result(&made) == wanted, "{matmul:?}\n{}\n{}", print(&program), print(&made));
            let copies = count(&made, |op| *op == Op::AsyncCopy) > 0;
            assert!(copies || arch == Arch::Sm90a, "{matmul:?}\n{}", print(&made));
        }
    }
}

/// What is read for rows beyond the array may only reach stores that are masked: otherwise rows are not mapped.
#[test]
fn rows_that_are_read_elsewhere_stay_pointers() {
    let wrapped = (0..).map(Matmul::random).find(|m| m.text.contains("% M") && m.text.contains("0.25"));
    let Some(wrapped) = wrapped else { return };
    let reason = |from: &str, to: &str| {
        assert!(wrapped.text.contains(from), "{}", wrapped.text);
        let text = wrapped.text.replace(from, to);
        let mut program = compiled(&text, wrapped.arguments()).unwrap_or_else(|e| panic!("{e}")).program;
        passes::canonicalise(&mut program).unwrap();
        passes::to_warpgroups(&program, Arch::Sm90a.machine()).err().map(|why| why.to_string()).unwrap_or_default()
    };
    assert_eq!(reason("inside = (cm", "inside = (cm"), "");
    let stays = "is neither a tile load nor a matmul";
    for (from, to) in [
        ("(cm[:, None] < M) &", ""),
        ("(cm[:, None] < M)", "(cm[:, None] <= M)"),
        ("(cm[:, None] < M)", "(cm[:, None] + 1 < M)"),
        ("(cm[:, None] < M)", "(cm[:, None] < N)"),
        ("acc = tl.where(acc > 0, acc, 0.25 * acc)", "acc += tl.sum(acc, axis=0)[None, :]"),
        ("acc = tl.where(acc > 0, acc, 0.25 * acc)", "tl.store(bias + k, tl.sum(acc, axis=1)[:BK])"),
    ] {
        let why = reason(from, to);
        assert!(why.contains(stays), "{from} -> {to}: {why}");
    }
}
