//! Attention under a mask that says from which or up to which key a query attends, by a number read from memory: the
//! programs must give what the graph gives, and must read no other block of keys.
use crate::common::{difference, interpreted, lowered, ran};
use kiln_graph::{Graph, Random, Tensor};
use kiln_machine::Arch;
use kiln_plan::KernelKind::Attention;

/// Batch, query heads, key heads, queries, keys, width.
type Shape = [usize; 6];

/// A mask computed from positions `%p`, as `%m`.
struct Mask {
    /// Type of `%p`, in terms of `B` (batch), `S` (queries) and `T` (keys).
    positions: &'static str,
    lines: &'static str,
    /// The keys that query `s` attends to end here, from its position, if nothing else masks them.
    end: fn(i64, i64) -> i64,
    /// They start here.
    start: fn(i64, i64) -> i64,
    /// Whether positions may be the greatest number.
    any: bool,
}

const MASKS: [Mask; 14] = [
    Mask {
        positions: "i64[1]",
        lines: "%k = iota axis=0 : i64[T]\n %m = le %k, %p",
        end: |p, _| p.saturating_add(1),
        start: |_, _| 0,
        any: true,
    },
    Mask {
        positions: "i32[B,1,1,1]",
        lines: "%k = iota axis=3 : i32[1,1,1,T]\n %m = lt %k, %p",
        end: |p, _| p,
        start: |_, _| 0,
        any: true,
    },
    Mask {
        positions: "i64[S]",
        lines: "%q1 = reshape %p shape=[S,1]\n %k = iota axis=1 : i64[1,T]\n %m = ge %q1, %k",
        end: |p, _| p.saturating_add(1),
        start: |_, _| 0,
        any: true,
    },
    Mask {
        positions: "i64[B,1,1,1]",
        lines: "%k = iota axis=0 : i64[T]\n %k1 = reshape %k shape=[1,1,1,T]\n %c = le %k1, %p\n %m = and %c, %pad",
        end: |p, _| p.saturating_add(1),
        start: |_, _| 0,
        any: true,
    },
    Mask {
        positions: "i64[B,1,S,1]",
        lines: "%k = iota axis=0 : i64[T]\n %c = gt %k, %p\n %c1 = not %c\n %m = select %c1, 0.0, -inf",
        end: |p, _| p.saturating_add(1),
        start: |_, _| 0,
        any: true,
    },
    Mask {
        positions: "i64[1]",
        lines: "%k = iota axis=0 : i64[T]\n %k1 = add %k, 3\n %m = le %k1, %p",
        end: |p, _| p.saturating_sub(2),
        start: |_, _| 0,
        any: true,
    },
    Mask {
        positions: "i64[1]",
        lines: "%k = iota axis=0 : i64[T]\n %r = iota axis=0 : i64[S,1]\n %q1 = add %r, %p\n %m = le %k, %q1",
        end: |p, s| p + s + 1,
        start: |_, _| 0,
        any: false,
    },
    Mask { positions: "i32[1]", lines: "%k = iota axis=0 : i32[T]\n %m = eq %k, %p", end: |p, _| p + 1, start: |p, _| p, any: false },
    // A window.
    Mask {
        positions: "i64[S,1]",
        lines: "%k = iota axis=1 : i64[1,T]\n %c = le %k, %p\n %low = sub %p, 40\n %d = lt %low, %k\n %m = and %c, %d",
        end: |p, _| p + 1,
        start: |p, _| p - 39,
        any: false,
    },
    Mask {
        positions: "i64[1]",
        lines: "%k = iota axis=0 : i64[T]\n %r = iota axis=0 : i64[S,1]\n %q1 = add %r, 290\n %d = sub %q1, %k\n %c = ge %d, 0
        %w = lt %d, 30\n %m = and %c, %w",
        end: |_, s| s + 291,
        start: |_, s| s + 261,
        any: false,
    },
    // To both sides of the position.
    Mask {
        positions: "i64[B,1,S,1]",
        lines: "%k = iota axis=0 : i64[T]\n %p32 = cast %p to=i32\n %p1 = min %p32, 100000\n %p2 = max %p1, -100000
        %p3 = cast %p2 to=i64\n %d = sub %k, %p3\n %a = abs %d\n %c = gt %a, 20\n %m = select %c, -inf, %zero",
        end: |p, _| p + 21,
        start: |p, _| p - 20,
        any: false,
    },
    // From the position on.
    Mask {
        positions: "i64[B,1,1,1]",
        lines: "%k = iota axis=3 : i64[1,1,1,T]\n %m = ge %k, %p",
        end: |_, _| i64::MAX,
        start: |p, _| p,
        any: true,
    },
    Mask {
        positions: "i32[1]",
        lines: "%k = iota axis=0 : i32[T]\n %c = lt %p, %k\n %m = and %c, %pad",
        end: |_, _| i64::MAX,
        start: |p, _| p.saturating_add(1),
        any: true,
    },
    // Either of two windows.
    Mask {
        positions: "i64[S,1]",
        lines: "%k = iota axis=1 : i64[1,T]\n %c = ge %k, %p\n %low = add %p, 70\n %d = ge %k, %low\n %m = or %c, %d",
        end: |_, _| i64::MAX,
        start: |p, _| p,
        any: false,
    },
];

fn graph(mask: &Mask, [b, hq, hk, s, t, d]: Shape, dtype: &str, how: &str) -> Graph {
    let fill = |text: &str| {
        let text = text.replace('B', &b.to_string()).replace('S', &s.to_string()).replace('T', &t.to_string());
        text.replace("0.0, -inf", "%zero, -inf")
    };
    let zero = if mask.lines.contains("-inf") { format!("%zero = const 0.0 : {dtype}[]\n") } else { String::new() };
    let text = format!(
        "graph k(%q: {dtype}[{b},{hq},{s},{d}], %kk: {dtype}[{b},{hk},{t},{d}], %v: {dtype}[{b},{hk},{t},{d}], %p: {},
        %pad: bool[{b},1,1,{t}]) {{\n {zero}{}\n %y = attention %q, %kk, %v, %m scale=0.3 {how}\n return %y\n}}",
        fill(mask.positions),
        fill(mask.lines)
    );
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Inputs, and the same with NaN in the keys that no query attends to: on a GPU in all blocks of keys beyond the end,
/// or before the first, of every query of a batch; on the host in all keys beyond the greatest end.
fn inputs(g: &Graph, mask: &Mask, shape: Shape, target: Arch, r: &mut Random) -> [Vec<Tensor>; 2] {
    /// A multiple of the keys of every tile.
    const BLOCK: usize = 256;
    let [b, _, hk, s, t, d] = shape;
    let mut clean = kiln_graphgen::inputs(g, r.next_below(1 << 20) as u64);
    for x in &mut clean[..3] {
        (0..x.ty.count()).for_each(|i| x.set_f64(i, r.next_below(1 << 12) as f64 / 2048.0 - 1.0));
    }
    let p = &mut clean[3];
    let (least, most) = p.ty.dtype.int_range().unwrap();
    let t64 = t as i64;
    let some = |r: &mut Random| match r.next_below(9) {
        0 => -1,
        1 => -7,
        2 => 0,
        3 => t64 - 1,
        4 => t64 + 9,
        5 if mask.any => r.choose(&[least, most]),
        _ => r.next_below(t) as i64,
    };
    (0..p.ty.count()).for_each(|i| p.set_i64(i, some(r)));
    let mut poisoned = clean.clone();
    let p = &clean[3];
    let position = |batch: usize, q: usize| match (mask.positions.contains('B'), mask.positions.contains('S')) {
        (true, true) => p.get_i64(batch * s + q),
        (true, false) => p.get_i64(batch),
        (false, true) => p.get_i64(q),
        (false, false) => p.get_i64(0),
    };
    let end = |batch: usize| (0..s).map(|q| (mask.end)(position(batch, q), q as i64)).max().unwrap_or(0).clamp(0, t64);
    let start =
        |batch: usize| (0..s).map(|q| (mask.start)(position(batch, q), q as i64)).min().unwrap_or(0).clamp(0, t64);
    for batch in 0..b {
        let first = match target {
            Arch::Cpu => end(batch) as usize,
            _ => (end(batch) as usize).next_multiple_of(BLOCK),
        };
        let before = if target == Arch::Cpu { 0 } else { start(batch) as usize / BLOCK * BLOCK };
        for x in &mut poisoned[1..3] {
            let unread =
                (0..hk).flat_map(|h| (0..before).chain(first.min(t)..t).map(move |k| (batch * hk + h) * t + k));
            unread.flat_map(|row| row * d..(row + 1) * d).for_each(|i| x.set_f64(i, f64::NAN));
        }
    }
    [clean, poisoned]
}

const SHAPES: [Shape; 3] = [
    // Slices of the keys.
    [2, 4, 2, 1, 1100, 16],
    [1, 2, 2, 5, 600, 24],
    // Several blocks of queries.
    [2, 2, 1, 40, 300, 16],
];

/// The host reads up to the greatest end of a batch.
fn check(target: Arch) {
    let mut r = Random::new(11);
    for (i, mask) in MASKS.iter().enumerate() {
        for (n, shape) in SHAPES.into_iter().enumerate() {
            let dtype = ["f32", "bf16"][(i + n) % 2];
            let g = graph(mask, shape, dtype, r.choose(&["", "fully_masked=nan"]));
            let [clean, poisoned] = inputs(&g, mask, shape, target, &mut r);
            let want = interpreted(&g, &clean).unwrap();
            let got = ran(Attention, &g, &poisoned, target).unwrap_or_else(|e| panic!("{e}\n{g}"));
            if let Err(e) = difference(&g, &want, &got) {
                let p = clean[3].to_f64_vec();
                panic!("mask {i}, {target:?}, positions {p:?}: {e}\n{g}\n{}", lowered(Attention, &g, target));
            }
        }
    }
}

#[test]
fn gpu_programs_read_no_block_of_keys_that_is_masked() {
    check(Arch::Sm90a);
}

#[test]
fn host_steps_read_no_key_beyond_the_end() {
    check(Arch::Cpu);
}

/// Where something else may let a key count, all keys are read.
#[test]
fn a_disjunction_has_no_end() {
    let shape = [1, 2, 2, 1, 600, 16];
    for lines in [
        "%k = iota axis=0 : i64[T]\n %c = le %k, %p\n %m = or %c, %pad",
        "%k = iota axis=0 : i64[T]\n %c = ge %k, %p\n %m = or %c, %pad",
        // The sum may wrap around.
        "%k = iota axis=0 : i64[T]\n %k1 = sub %p, %k\n %m = ge %k1, 0",
    ] {
        let mask = Mask { positions: "i64[1]", lines, end: |_, _| 600, start: |_, _| 0, any: true };
        let g = graph(&mask, shape, "f32", "");
        for position in [i64::MIN, -1, 17, 300, i64::MAX] {
            let mut all = kiln_graphgen::inputs(&g, 5);
            all[3].set_i64(0, position);
            let (want, got) = (interpreted(&g, &all).unwrap(), ran(Attention, &g, &all, Arch::Sm90a).unwrap());
            difference(&g, &want, &got).unwrap_or_else(|e| panic!("{e}\n{g}"));
        }
    }
}
