//! Attention with sizes and strides of the launch, as people write it: in roles of warpgroups it gives every bit that
//! it gave before. Forms and sizes are drawn at random: one loop with masks or two, causal or not, windows, keys as
//! stored or loaded transposed, no keys at all, descriptors.
use crate::harness::{compiled, int, scalar, zeros};
use kiln_block::{BlockProgram, Elem, Op, passes, text::print};
use kiln_graph::Random;
use kiln_interp::block::{Buffer, run_grid};
use kiln_kernels::{Argument, ArgumentFacts, Number};
use kiln_machine::Arch;

const HEADS: usize = 2;

/// A kernel and a launch of it.
#[derive(Debug)]
struct Attention {
    text: String,
    elem: Number,
    /// Queries, keys, features.
    length: usize,
    keys: usize,
    dim: usize,
    /// Rows and columns of the scores of an iteration.
    tile: [usize; 2],
    seed: u64,
}

/// A stride that the launcher notes to be a multiple of 16.
const PITCH: Argument = Argument::Scalar {
    elem: Number::Int32,
    facts: ArgumentFacts { div: Some(16), equals: None, least: None, most: None, span32: false, noalias: false },
};

/// A tensor of fewer than 2^31 elements that no other argument shares memory with.
fn small_tensor(elem: Number) -> Argument {
    let facts = ArgumentFacts { div: Some(16), span32: true, noalias: true, ..ArgumentFacts::default() };
    Argument::Pointer { elem, facts }
}

/// Which columns a row sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    All,
    Causal,
    Window,
}

/// The loop over columns from `start` to `end`.
fn columns(r: &Choices, start: &str, end: &str, masked: bool, seen: Seen) -> String {
    let (keep, keep_value) = match masked {
        true => (", mask=n[None, :] < kv_length, other=0.0", ", mask=n[:, None] < kv_length, other=0.0"),
        false => ("", ""),
    };
    let keys = match r.transposed {
        true => format!("tl.load(k + n[None, :] * skn + d[:, None]{keep})"),
        false => format!("tl.trans(tl.load(k + n[:, None] * skn + d[None, :]{keep_value}))"),
    };
    let mut conditions = vec!["(n[None, :] < kv_length)"];
    if seen != Seen::All {
        conditions.push("(n[None, :] <= m[:, None])");
    }
    if seen == Seen::Window {
        conditions.push("(n[None, :] > m[:, None] - 70)");
    }
    let hidden = r.hidden;
    let mask = match masked {
        true => format!("scores = tl.where({}, scores, {hidden})", conditions.join(" & ")),
        false => "pass".into(),
    };
    let score = r.score;
    let weigh = match r.adds {
        true => "acc = acc * shrink[:, None]\n        acc += tl.dot(weights.to(values.dtype), values)",
        false => "acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None])",
    };
    format!(
        "    for start in range({start}, {end}, BN):
        n = start + tl.arange(0, BN)
        scores = tl.dot(queries, {keys}) * scale
        {score}
        {mask}
        larger = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.math.exp2(scores - larger[:, None])
        shrink = tl.math.exp2(maximum - larger)
        total = total * shrink + tl.sum(weights, axis=1)
        values = tl.load(v + n[:, None] * svn + d[None, :]{keep_value})
        {weigh}
        maximum = larger
"
    )
}

struct Choices {
    transposed: bool,
    adds: bool,
    hidden: &'static str,
    score: &'static str,
}

impl Attention {
    fn random(seed: u64) -> Attention {
        let mut r = Random::new(seed);
        let elem = r.choose(&[Number::Float16, Number::BFloat16]);
        let tile = [r.choose(&[64, 128]), r.choose(&[64, 64, 128])];
        let dim = r.choose(&[64, 64, 128]);
        let length = 1 + r.next_below(150);
        let keys = r.choose(&[0, 1, 64, 65, 128, 200, length]);
        let seen = r.choose(&[Seen::All, Seen::Causal, Seen::Window]);
        let choices = Choices {
            transposed: r.choose(&[true, false]),
            adds: r.choose(&[true, false]),
            hidden: r.choose(&["-1.0e30", "-1.0e30", "-float('inf')"]),
            score: r.choose(&[
                "pass",
                "pass",
                "scores = scores - 0.125 * tl.abs(m[:, None] - n[None, :]).to(tl.float32)",
            ]),
        };
        let end = if seen == Seen::All { "kv_length" } else { "min(first + BM, kv_length)" };
        let loops = if seen == Seen::Window {
            let start = "max(first - 70 + 1, 0) // BN * BN";
            columns(&choices, start, end, true, seen)
        } else if r.choose(&[true, false]) {
            let whole = if seen == Seen::All { "kv_length" } else { "min(first, kv_length)" };
            let whole = format!("{whole} // BN * BN");
            columns(&choices, "0", &whole, false, seen) + &columns(&choices, &whole, end, true, seen)
        } else {
            columns(&choices, "0", end, true, seen)
        };
        let scaled = match r.choose(&[true, false, false]) {
            true => "queries = (queries * 0.25).to(q.dtype.element_ty)",
            false => "pass",
        };
        let text = format!(
            "def attention(q, k, v, out, sums, scale, length, kv_length, heads, sqb, sqh, sqm, skb, skh, skn, svb, \
             svh, svn, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    first = tl.program_id(0) * BM
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    m = first + tl.arange(0, BM)
    d = tl.arange(0, D)
    q += batch.to(tl.int64) * sqb + head * sqh
    k += batch * skb + head * skh
    v += batch * svb + head * svh
    out += batch * sqb + head * sqh
    queries = tl.load(q + m[:, None] * sqm + d[None, :], mask=m[:, None] < length, other=0.0)
    {scaled}
    maximum = tl.full([BM], -float('inf'), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
{loops}    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + m[:, None] * sqm + d[None, :], result, mask=m[:, None] < length)
    tl.store(sums + tl.program_id(1) * length + m, maximum + tl.log2(total), mask=m < length)
"
        );
        Attention { text, elem, length, keys, dim, tile, seed }
    }
    /// By descriptors of all heads' rows, which are made in the kernel; offsets are carried; in two stages where
    /// causal.
    fn by_descriptors(seed: u64) -> Attention {
        let mut r = Random::new(seed);
        let tile = [r.choose(&[64, 128]), 64];
        let dim = r.choose(&[64, 128]);
        let length = tile[0] * (1 + r.next_below(3));
        let stages = match r.choose(&[true, false]) {
            true => {
                "    acc, total, maximum = visit(acc, total, maximum, queries, rows_k, rows_v, base, 0, first, factor, \
                 m, False, BN)
    acc, total, maximum = visit(acc, total, maximum, queries, rows_k, rows_v, base, first, first + BM, factor, m, \
                 True, BN)"
            }
            false => {
                "    acc, total, maximum = visit(acc, total, maximum, queries, rows_k, rows_v, base, 0, kv_length, \
                 factor, m, False, BN)"
            }
        };
        let text = format!(
            "def visit(acc, total, maximum, queries, rows_k, rows_v, base, lo, hi, factor, m, MASKED: tl.constexpr, \
             BN: tl.constexpr):
    at = base + lo
    for start in range(lo, hi, BN):
        scores = tl.dot(queries, rows_k.load([at, 0]).T)
        if MASKED:
            seen = m[:, None] >= start + tl.arange(0, BN)[None, :]
            scores = scores * factor + tl.where(seen, 0, -1.0e6)
            larger = tl.maximum(maximum, tl.max(scores, 1))
            scores -= larger[:, None]
        else:
            larger = tl.maximum(maximum, tl.max(scores, 1) * factor)
            scores = scores * factor - larger[:, None]
        weights = tl.math.exp2(scores)
        shrink = tl.math.exp2(maximum - larger)
        acc = acc * shrink[:, None]
        values = rows_v.load([at, 0])
        acc = tl.dot(weights.to(values.dtype), values, acc)
        total = total * shrink + tl.sum(weights, 1)
        maximum = larger
        at += BN
    return acc, total, maximum

def attention(q, k, v, out, sums, scale, length, kv_length, heads, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, D: \
             tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    first = tl.program_id(0) * BM
    count = 2 * heads * kv_length
    rows_q = tl.make_tensor_descriptor(q, [count, D], [D, 1], [BM, D])
    rows_k = tl.make_tensor_descriptor(k, [count, D], [D, 1], [BN, D])
    rows_v = tl.make_tensor_descriptor(v, [count, D], [D, 1], [BN, D])
    rows_out = tl.make_tensor_descriptor(out, [count, D], [D, 1], [BM, D])
    base = (tl.program_id(1) // heads) * (kv_length * heads) + (tl.program_id(1) % heads) * kv_length
    m = first + tl.arange(0, BM)
    maximum = tl.zeros([BM], dtype=tl.float32) - float('inf')
    total = tl.zeros([BM], dtype=tl.float32) + 1.0
    acc = tl.zeros([BM, D], dtype=tl.float32)
    factor = scale * 1.44269504
    queries = rows_q.load([base + first, 0])
{stages}
    maximum += tl.math.log2(total)
    tl.store(sums + tl.program_id(1) * length + m, maximum)
    rows_out.store([base + first, 0], (acc / total[:, None]).to(out.dtype.element_ty))
"
        );
        Attention { text, elem: Number::Float16, length, keys: length, dim, tile, seed }
    }
    fn arguments(&self) -> Vec<Argument> {
        let [f32, i32] = [Number::Float32, Number::Int32];
        let numbers = [scalar(f32), scalar(i32), scalar(i32), scalar(i32)];
        let sizes = [self.dim, self.tile[0], self.tile[1]].map(|n| int(n as i128));
        [self.elem; 4]
            .map(small_tensor)
            .into_iter()
            .chain([small_tensor(f32)])
            .chain(numbers)
            .chain([PITCH; 9])
            .chain(sizes)
            .collect()
    }
    fn buffers(&self, program: &BlockProgram) -> Vec<Buffer> {
        let mut r = Random::new(self.seed + 1000);
        let elem = if self.elem == Number::Float16 { Elem::F16 } else { Elem::Bf16 };
        // Features of all heads of a row are next to each other.
        let row = HEADS * self.dim;
        let count = |rows: usize| 2 * rows.max(1) * row;
        let mut values = |count: usize| {
            let values: Vec<f64> = (0..count).map(|_| r.next_below(17) as f64 / 8.0 - 1.0).collect();
            Buffer::from_f64(elem, &[count], values)
        };
        let passed = program.params.iter().filter(|p| p.launch_array.is_none());
        let named = |name: &str| {
            let number = match name {
                "q" => return values(count(self.length)),
                "k" | "v" => return values(count(self.keys)),
                "out" => return zeros(elem, count(self.length)),
                "sums" => return zeros(Elem::F32, 2 * HEADS * self.length),
                "scale" => return Buffer::from_f64(Elem::F32, &[1], vec![0.125]),
                "length" => self.length,
                "kv_length" => self.keys,
                "heads" => HEADS,
                "sqb" => self.length * row,
                "skb" | "svb" => self.keys * row,
                "sqh" | "skh" | "svh" => self.dim,
                _ => row,
            };
            Buffer::from_f64(Elem::I32, &[1], vec![number as f64])
        };
        passed.map(|p| p.name.as_str()).map(named).collect()
    }
    fn result(&self, program: &BlockProgram) -> [Vec<u8>; 2] {
        let mut buffers = self.buffers(program);
        let grid = [self.length.div_ceil(self.tile[0]), 2 * HEADS, 1];
        if let Err(error) = run_grid(program, grid, &mut buffers) {
            panic!("{self:?}: {error}\n{}", print(program));
        }
        ["out", "sums"].map(|name| {
            let place = program.params.iter().position(|p| p.name == name).unwrap();
            buffers[place].bytes.clone()
        })
    }
}

fn count(program: &BlockProgram, wanted: impl Fn(&Op) -> bool) -> usize {
    let mut found = 0;
    program.walk(&mut |_, d| found += usize::from(wanted(&d.op)));
    found
}

#[test]
fn roles_of_attention_keep_every_bit() {
    let forms = (0..20).map(Attention::random).chain((20..26).map(Attention::by_descriptors));
    for attention in forms {
        let mut program = compiled(&attention.text, attention.arguments()).unwrap_or_else(|e| panic!("{e}")).program;
        passes::canonicalise(&mut program).unwrap();
        let roles = passes::to_warpgroups(&program, Arch::Sm90a.machine());
        let roles = roles.unwrap_or_else(|why| panic!("{attention:?}: {why}\n{}", print(&program))).roles;
        assert_eq!(kiln_block::text::parse(&print(&roles)).as_ref(), Ok(&roles));
        assert_eq!(count(&roles, |op| matches!(op, Op::Load(..))), 0, "{}", print(&roles));
        let (wanted, given) = (attention.result(&program), attention.result(&roles));
        assert!(given == wanted, "{attention:?}\n{}\n{}", print(&program), print(&roles));
    }
}
