//! The passes that turn a plain matmul into a warp-specialised kernel change no bit: generated programs, interpreted
//! before and after each pass.
use kiln_block::passes::warpgroup::{Launch, Refusal, WarpRoles, maps, persistent, roles};
use kiln_block::{
    Array, BinaryOp, BlockProgram, Builder, CmpOp, Const, DotPrecision, Elem, Op, Swizzle, Terms, Type, UnaryOp, Value,
    text, verify::verify,
};
use kiln_graph::Random;
use kiln_interp::block::{Buffer, run};
use kiln_machine::Arch;

/// A tiled matmul of row-major matrices in memory, whose rows are a pitch apart.
#[derive(Clone, Copy, Debug)]
struct Plain {
    elem: Elem,
    /// The terms that f32 kernels sum along K.
    terms: Terms,
    /// M, N, K of the matmul.
    size: [usize; 3],
    /// M, N, K of a tile.
    tile: [usize; 3],
    batch: usize,
    /// Whether the left operand is stored as `[K, M]`, and the right one as `[N, K]`.
    transposed: [bool; 2],
    /// Dual GEMM: the result is multiplied by the matmul with a second right operand.
    gated: bool,
    bias: bool,
    residual: bool,
    /// Grid order: 0 rows first, 1 columns first, 2 one axis for both.
    grid: usize,
    /// Whether the loop carries pointers that advance along K, or computes them from the index.
    carried: bool,
}

impl Plain {
    fn random(seed: u64) -> Plain {
        let mut r = Random::new(seed);
        let elem = r.choose(&[Elem::Bf16, Elem::F16, Elem::F32]);
        let (tile, depth) = if elem == Elem::F32 { ([64, 64, 32], 32) } else { ([64, 128, 64], 64) };
        let [m, n, k] = tile;
        let tile = [m * (1 + r.next_below(2)), n, k];
        let batch = r.choose(&[1, 1, 3]);
        let size = [1 + r.next_below(3 * tile[0]), 1 + r.next_below(3 * n), 1 + r.next_below(4 * depth)];
        // Batches are stored back to back, and masks do not mark where one ends: their sizes are whole tiles.
        let whole = batch > 1 || r.next_below(4) == 0;
        let size = if whole {
            [size[0].next_multiple_of(tile[0]), size[1].next_multiple_of(n), size[2].next_multiple_of(k)]
        } else {
            size
        };
        let gated = r.next_below(3) == 0;
        let tile = if elem != Elem::F32 && !gated && seed.is_multiple_of(3) { [tile[0], 256, tile[2]] } else { tile };
        let size = if whole { [size[0], size[1].next_multiple_of(tile[1]), size[2]] } else { size };
        let grid = if batch > 1 { r.next_below(2) } else { r.next_below(3) };
        let transposed = if batch > 1 { [false, false] } else { [r.choose(&[false, true]), r.choose(&[false, true])] };
        // Fewer rows than a tile has.
        let few = !whole && elem != Elem::F32;
        let size = if few { [1 + size[0] % 48, size[1], size[2]] } else { size };
        let transposed = [transposed[0] && !few, transposed[1]];
        let terms = r.choose(&[Terms::Products, Terms::Squares, Terms::Distances]);
        Plain {
            elem,
            terms,
            size,
            tile,
            batch,
            transposed,
            gated,
            bias: r.choose(&[false, true]),
            residual: r.choose(&[false, true]),
            grid,
            carried: r.choose(&[false, true]),
        }
    }
    fn tiles(&self) -> [usize; 2] {
        [self.size[0].div_ceil(self.tile[0]), self.size[1].div_ceil(self.tile[1])]
    }
    /// Elements from row to row of an array with `n` columns.
    fn pitch(n: usize) -> usize {
        n.next_multiple_of(8)
    }
    fn kernel(&self) -> BlockProgram {
        let [tm, tn, tk] = self.tile;
        let [rows, columns] = self.tiles();
        let grid = [[rows, columns, self.batch], [columns, rows, self.batch], [rows * columns, 1, 1]][self.grid];
        let mut b = Builder::new("plain", grid, 8);
        let params = ["a", "b", "g"].map(|name| b.param(name, self.elem, true));
        let extra = [b.param("bias", Elem::F32, true), b.param("residual", self.elem, true)];
        let c = b.param("c", self.elem, false);
        let (pm, pn) = match self.grid {
            0 => (b.program_id(0), b.program_id(1)),
            1 => (b.program_id(1), b.program_id(0)),
            _ => {
                let (t, n) = (b.program_id(0), b.i32(columns as i64));
                (b.binary(BinaryOp::Div, t, n), b.binary(BinaryOp::Rem, t, n))
            }
        };
        let z = b.program_id(2);
        let at = |b: &mut Builder, p: Value, n: usize| {
            let (n, lane) = (b.i32(n as i64), b.iota(n));
            let start = b.binary(BinaryOp::Mul, p, n);
            b.binary(BinaryOp::Add, start, lane)
        };
        let (m, n) = (at(&mut b, pm, tm), at(&mut b, pn, tn));
        let bounds = |b: &mut Builder, v: Value, end: usize, block: usize| {
            let n = b.i32(end as i64);
            (!end.is_multiple_of(block)).then(|| b.cmp(CmpOp::Lt, v, n))
        };
        let both = |b: &mut Builder, x: Option<Value>, y: Option<Value>| {
            let x = x.map(|x| b.expand_dims(x, 1));
            match (x, y) {
                (Some(x), Some(y)) => Some(b.binary(BinaryOp::And, x, y)),
                (x, y) => x.or(y),
            }
        };
        let kl = b.iota(tk);
        let (lo, hi, step) = (b.i32(0), b.i32(self.size[2] as i64), b.i32(tk as i64));
        let zero = b.constant(Type::block(Elem::F32, [tm, tn]), Const::Float(0.0));
        // Pointers to (outer, inner), contiguous along the inner axis, or along the outer one if transposed.
        let pointers =
            |b: &mut Builder, p: Value, outer: Value, inner: Value, transposed: bool, pitch: usize, rows: usize| {
                let outer = b.expand_dims(outer, 1);
                let pitch_value = b.i32(pitch as i64);
                let (o, i) = match transposed {
                    false => (b.binary(BinaryOp::Mul, outer, pitch_value), inner),
                    true => (outer, b.binary(BinaryOp::Mul, inner, pitch_value)),
                };
                let of_batch = b.i32((rows * pitch) as i64);
                let base = b.binary(BinaryOp::Mul, z, of_batch);
                let offset = b.binary(BinaryOp::Add, o, i);
                let offset = b.binary(BinaryOp::Add, offset, base);
                b.ptr_add(p, offset)
            };
        let depth = self.size[2];
        let a_pitch = Plain::pitch(if self.transposed[0] { self.size[0] } else { depth });
        let b_pitch = Plain::pitch(if self.transposed[1] { depth } else { self.size[1] });
        let (a_rows, b_rows) = (
            if self.transposed[0] { depth } else { self.size[0] },
            if self.transposed[1] { self.size[1] } else { depth },
        );
        let count = 1 + usize::from(self.gated);
        let tiles = |b: &mut Builder, k: Value| -> Vec<Value> {
            let mut all = vec![pointers(b, params[0], m, k, self.transposed[0], a_pitch, a_rows)];
            all.extend(params[1..=count].iter().map(|p| pointers(b, *p, k, n, self.transposed[1], b_pitch, b_rows)));
            all
        };
        let start = if self.carried { tiles(&mut b, kl) } else { vec![] };
        let carried = [vec![zero; count], start].concat();
        let out = b.for_loop([lo, hi, step], &carried, |b, index, now| {
            let k = b.binary(BinaryOp::Add, index, kl);
            let ptrs = if self.carried { now[count..].to_vec() } else { tiles(b, k) };
            let (mm, nn, kk) =
                (bounds(b, m, self.size[0], tm), bounds(b, n, self.size[1], tn), bounds(b, k, depth, tk));
            let masks = [both(b, mm, kk), both(b, kk, nn)];
            let loaded: Vec<Value> = ptrs
                .iter()
                .enumerate()
                .map(|(i, p)| {
                    let mask = masks[i.min(1)].map(|m| {
                        let shape = b.shape(*p);
                        b.broadcast_to(m, &shape)
                    });
                    b.load(*p, mask, None)
                })
                .collect();
            let mut dot = |i: usize| match self.elem {
                Elem::F32 => b.sum_of(self.terms, loaded[0], loaded[1 + i], now[i]),
                _ => b.dot(loaded[0], loaded[1 + i], now[i], DotPrecision::Exact),
            };
            let mut next: Vec<Value> = (0..count).map(&mut dot).collect();
            if self.carried {
                let steps = [
                    if self.transposed[0] { tk * a_pitch } else { tk },
                    if self.transposed[1] { tk } else { tk * b_pitch },
                ];
                for (i, p) in ptrs.iter().enumerate() {
                    let by = b.i32(steps[i.min(1)] as i64);
                    next.push(b.ptr_add(*p, by));
                }
            }
            next
        });
        let mut value = out[0];
        if self.gated {
            value = b.binary(BinaryOp::Mul, value, out[1]);
        }
        let (mm, nn) = (bounds(&mut b, m, self.size[0], tm), bounds(&mut b, n, self.size[1], tn));
        if self.bias {
            let p = b.ptr_add(extra[0], n);
            let bias = b.load(p, nn, None);
            value = b.binary(BinaryOp::Add, value, bias);
            value = b.unary(UnaryOp::Tanh, value);
        }
        let mask = both(&mut b, mm, nn);
        let pitch = Plain::pitch(self.size[1]);
        if self.residual {
            let p = pointers(&mut b, extra[1], m, n, false, pitch, self.size[0]);
            let more = b.load(p, mask, None);
            let more = b.cast(more, Elem::F32);
            value = b.binary(BinaryOp::Add, value, more);
        }
        let value = b.cast(value, self.elem);
        let p = pointers(&mut b, c, m, n, false, pitch, self.size[0]);
        b.store(p, value, mask);
        b.finish()
    }
    /// Random operands, with NaN in the padding that must not be read.
    fn buffers(&self, seed: u64) -> Vec<Buffer> {
        let mut r = Random::new(seed ^ 0x5eed);
        let [m, n, k] = self.size;
        let mut matrix = |elem: Elem, rows: usize, columns: usize| {
            let pitch = Plain::pitch(columns);
            let values = (0..self.batch * rows * pitch)
                .map(|i| if i % pitch < columns { r.next_below(2000) as f64 / 1000.0 - 1.0 } else { f64::NAN });
            Buffer::from_f64(elem, &[self.batch * rows, pitch], values.collect::<Vec<_>>())
        };
        let stored = |transposed: bool, [x, y]: [usize; 2]| if transposed { (y, x) } else { (x, y) };
        let (a, b) = (stored(self.transposed[0], [m, k]), stored(self.transposed[1], [k, n]));
        let operands = [matrix(self.elem, a.0, a.1), matrix(self.elem, b.0, b.1), matrix(self.elem, b.0, b.1)];
        let bias = matrix(Elem::F32, 1, n.next_multiple_of(8));
        let (residual, out) = (matrix(self.elem, m, n), matrix(self.elem, m, n));
        [operands.to_vec(), vec![bias, residual, out]].concat()
    }
}

fn result(k: &BlockProgram, mut buffers: Vec<Buffer>, about: &str) -> Vec<u8> {
    verify(k).unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(k)));
    assert_eq!(text::parse(&text::print(&k.compacted())), Ok(k.compacted()), "{about}");
    let counts = k.params.len() > buffers.len();
    if counts {
        buffers.push(Buffer::zeros(Elem::I32, &[1]));
    }
    run(k, &mut buffers).unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(k)));
    if counts {
        let counter = buffers.pop().map(|b| b.bytes);
        assert_eq!(counter, Some(vec![0; 4]), "{about}: the counter is not back at 0");
    }
    buffers.pop().map_or(vec![], |b| b.bytes)
}

fn has(k: &BlockProgram, wanted: impl Fn(&Op) -> bool) -> bool {
    let mut found = false;
    k.walk(&mut |_, d| found |= wanted(&d.op));
    found
}

#[test]
fn every_step_keeps_every_bit() {
    let (mut made, mut prefetched, mut narrowed, mut too_large) = (0, 0, 0, 0);
    for seed in 0..16 {
        let plain = Plain::random(seed);
        let k = plain.kernel();
        let about = format!("seed {seed}: {plain:?}");
        let wanted = result(&k, plain.buffers(seed), &about);
        let check = |name: &str, k: &BlockProgram| {
            let got = result(k, plain.buffers(seed), &format!("{about} after {name}"));
            assert!(got == wanted, "{about}: {name} changes the result\n{}", text::print(k));
        };
        let mapped = maps::run(&k).unwrap_or_else(|e| panic!("{about}: {e}"));
        check("maps", &mapped);
        assert!(has(&mapped, |op| *op == Op::TileLoad), "{about}\n{}", text::print(&mapped));
        let [rows, _] = plain.tiles();
        let clusters = if plain.elem != Elem::F32 && plain.grid < 2 && rows.is_multiple_of(2) { 2 } else { 1 };
        let single = persistent::run(&mapped, Launch { blocks: 2, cluster: 1, group: 3, ..Launch::of(&mapped, 132) })
            .unwrap_or_else(|e| panic!("{about}: {e}"));
        check("persistent", &single);
        let dynamic = Launch {
            blocks: 3.min(mapped.instances().unwrap()),
            cluster: 1,
            group: 3,
            dynamic: true,
            ..Launch::of(&mapped, 132)
        };
        check("persistent, dynamic", &persistent::run(&mapped, dynamic).unwrap_or_else(|e| panic!("{about}: {e}")));
        let clustered =
            persistent::run(&mapped, Launch { blocks: 4, cluster: clusters, ..Launch::of(&mapped, 132) }).unwrap();
        // Of a tile that has more rows than the array, only those of the array are copied.
        let rows = (plain.tiles()[0] == 1).then_some(plain.size[0]);
        let narrow = rows.is_some_and(|m| m + 8 <= plain.tile[0]) && plain.elem != Elem::F32 && !plain.transposed[0];
        let ping_pong = |stages| {
            Some(WarpRoles { consumers: 2, stages, ping_pong: true, columns: None, rows, buffers: None, last: None })
        };
        // The epilogue's tile of four slices through two buffers.
        let buffers = (has(&mapped, |op| *op == Op::TileLoad) && plain.residual && plain.tile[1] == 256).then_some(2);
        let shared = WarpRoles {
            consumers: plain.tile[0] / 64,
            stages: 2,
            ping_pong: false,
            columns: None,
            rows,
            buffers,
            last: None,
        };
        for (name, before, crew) in [
            ("roles", mapped.clone(), None),
            ("persistent, roles", single.clone(), None),
            ("clusters, roles", clustered.clone(), None),
            ("persistent, roles, few buffers", single.clone(), (plain.elem != Elem::F32).then_some(shared)),
            ("persistent, ping-pong", single, ping_pong(2)),
            ("clusters, ping-pong", clustered, ping_pong(3)),
        ] {
            match roles::run(&before, crew, Arch::Sm90a.machine()) {
                Ok(k) => {
                    made += 1;
                    prefetched += usize::from(plain.residual);
                    narrowed += usize::from(narrow && crew.is_some_and(|crew| crew.ping_pong));
                    let mut barriers = 0;
                    k.walk(&mut |_, d| barriers += usize::from(d.op == Op::AllocBarriers));
                    let ring = 2 + usize::from(crew.is_some_and(|c| c.ping_pong));
                    assert_eq!(barriers, ring + usize::from(plain.residual), "{about}, {name}");
                    check(name, &k);
                    let mut clean = k.compacted();
                    kiln_block::passes::canonicalise(&mut clean).unwrap();
                    check(&format!("{name}, canonical"), &clean);
                }
                // With ping-pong a consumer owns a whole tile, so a thread has twice the accumulators.
                Err(Refusal(why)) if crew.is_some() && why.contains("a thread would hold 256 sums") => {}
                // Two consumers' tiles and a residual's may be more than shared memory has; lowering takes smaller
                // ones.
                Err(Refusal(why)) if why.contains("do not fit shared memory") => too_large += 1,
                Err(Refusal(why)) => panic!("{about}: {why}\n{}", text::print(&before)),
            }
        }
    }
    assert!(made > 4 * 16, "{made}");
    assert!(too_large < 16, "{too_large} programs do not fit");
    assert!(prefetched > 20 && narrowed >= 4, "{prefetched}, {narrowed}");
}

/// Two chained matmuls as in attention: queries by descriptor, keys in blocks, a mask of positions and a row maximum;
/// and sizes of the queries and of the keys. `beside`: tiles of these types that scores are added to or masked by, each
/// an array over queries and keys in rows of [`pitch`] elements; the first one only where the mask of positions holds,
/// or where it does not.
fn chained(r: &mut Random, beside: &[Elem]) -> (BlockProgram, [usize; 2]) {
    let (m, keys, width) = (64 * (1 + r.next_below(2)), 64, 64);
    let (rows, columns) = (1 + r.next_below(200), 1 + r.next_below(300));
    let mut b = Builder::new("chained", [rows.div_ceil(m), 1, 1], 4 * (m / 64));
    let elem = r.choose(&[Elem::Bf16, Elem::F16]);
    let desc = |b: &mut Builder, name: &str, outer: usize, tile: usize, readonly: bool| {
        let array = Array { offset: 0, sizes: vec![outer, width], strides: vec![width, 1] };
        b.descriptor(name, Type::Desc { elem, shape: vec![tile, width], swizzle: Swizzle::B128 }, array, readonly)
    };
    let q = desc(&mut b, "q", rows, m, true);
    let [k, v] = ["k", "v"].map(|name| desc(&mut b, name, columns, keys, true));
    let tiles: Vec<Value> = (beside.iter().enumerate())
        .map(|(i, elem)| {
            let array = Array { offset: 0, sizes: vec![rows, columns], strides: vec![pitch(columns), 1] };
            let ty = Type::Desc { elem: *elem, shape: vec![m, keys], swizzle: Swizzle::widest(*elem, keys) };
            b.descriptor(format!("s{i}"), ty, array, true)
        })
        .collect();
    let o = desc(&mut b, "o", rows, m, false);
    let partial = r.choose(&[false, true]);
    let (zero, size) = (b.i32(0), b.i32(m as i64));
    let pid = b.program_id(0);
    let first = b.binary(BinaryOp::Mul, pid, size);
    let tile = |b: &mut Builder, desc: Value, at: Value, rows: usize| {
        b.inst(Op::TileLoad, &[desc, at, zero], &[Type::block(elem, [rows, width])], vec![])[0]
    };
    let query = tile(&mut b, q, first, m);
    let lowest = b.constant(Type::block(Elem::F32, [m, 1]), Const::Float(f64::NEG_INFINITY));
    let none = b.constant(Type::block(Elem::F32, [m, width]), Const::Float(0.0));
    let (end, step) = (b.i32(columns as i64), b.i32(keys as i64));
    let window = b.i32(r.choose(&[20, 70, 1000]));
    let (at_row, at_column) = (b.iota(m), b.iota(keys));
    let (at_row, at_column) = (b.expand_dims(at_row, 1), b.expand_dims(at_column, 0));
    let at_row = b.binary(BinaryOp::Add, at_row, first);
    let out = b.for_loop([zero, end, step], &[lowest, none], |b, index, now| {
        let k = tile(b, k, index, keys);
        let k = b.permute(k, &[1, 0]);
        let nothing = b.constant(Type::block(Elem::F32, [m, keys]), Const::Float(0.0));
        let s = b.dot(query, k, nothing, DotPrecision::Exact);
        let key = b.binary(BinaryOp::Add, at_column, index);
        let before = b.cmp(CmpOp::Le, key, at_row);
        let oldest = b.binary(BinaryOp::Sub, at_row, window);
        let after = b.cmp(CmpOp::Gt, key, oldest);
        let inside = b.binary(BinaryOp::And, before, after);
        let low = b.constant(Type::scalar(Elem::F32), Const::Float(f64::NEG_INFINITY));
        let mut s = s;
        for (i, (desc, elem)) in tiles.iter().zip(beside).enumerate() {
            let tile = b.inst(Op::TileLoad, &[*desc, first, index], &[Type::block(*elem, [m, keys])], vec![])[0];
            let with = match elem {
                Elem::Bool => b.select(tile, s, low),
                _ => {
                    let tile = b.cast(tile, Elem::F32);
                    b.binary(BinaryOp::Add, s, tile)
                }
            };
            s = if i == 0 && partial { b.select(before, s, with) } else { with };
        }
        let s = b.select(inside, s, low);
        let most = b.reduce(kiln_block::ReduceOp::Max, s, 1);
        let most = b.expand_dims(most, 1);
        let most = b.binary(BinaryOp::Max, now[0], most);
        // Halves of what is left of the maximum: any function of the scores will do.
        let bound = b.constant(Type::scalar(Elem::F32), Const::Float(-4.0));
        let weights = b.binary(BinaryOp::Max, s, bound);
        let weights = b.cast(weights, elem);
        let half = b.constant(Type::scalar(Elem::F32), Const::Float(0.5));
        let sum = b.binary(BinaryOp::Mul, now[1], half);
        let v = tile(b, v, index, keys);
        vec![most, b.dot(weights, v, sum, DotPrecision::Exact)]
    });
    let bound = b.constant(Type::scalar(Elem::F32), Const::Float(-9.0));
    let most = b.binary(BinaryOp::Max, out[0], bound);
    let result = b.binary(BinaryOp::Add, out[1], most);
    let result = b.cast(result, elem);
    b.inst(Op::TileStore, &[o, result, first, zero], &[], vec![]);
    (b.finish(), [rows, columns])
}

/// Elements from row to row of an array beside the scores: a multiple of 16 bytes for every type.
fn pitch(columns: usize) -> usize {
    columns.next_multiple_of(16)
}

/// What the scores of the generated programs are computed with.
const BESIDE: [&[Elem]; 6] =
    [&[], &[Elem::Bf16], &[Elem::Bool], &[Elem::F32], &[Elem::F16, Elem::Bool], &[Elem::Bool, Elem::F32, Elem::Bf16]];

#[test]
fn chained_matmuls_keep_every_bit() {
    let mut rings = 0;
    for seed in 0..48 {
        let mut r = Random::new(seed);
        let beside = BESIDE[seed as usize % BESIDE.len()];
        let (k, [rows, columns]) = chained(&mut r, beside);
        let (q, keys) = (rows * 64, columns * 64);
        let elem = k.params.first().and_then(|p| k.ty(p.value).elem()).unwrap();
        let mut random = |elem: Elem, n: usize| {
            let one =
                |_| if elem == Elem::Bool { r.next_below(2) as f64 } else { r.next_below(65) as f64 / 16.0 - 2.0 };
            Buffer::from_f64(elem, &[n], (0..n).map(one).collect::<Vec<f64>>())
        };
        let mut buffers = vec![random(elem, q), random(elem, keys), random(elem, keys)];
        buffers.extend(beside.iter().map(|elem| random(*elem, rows * pitch(columns))));
        buffers.push(Buffer::zeros(elem, &[q]));
        let about = format!("seed {seed}, {beside:?}");
        let wanted = result(&k, buffers.clone(), &about);
        let check = |name: &str, k: &BlockProgram| {
            let got = result(k, buffers.clone(), &format!("{about} after {name}"));
            assert!(got == wanted, "{about}: {name} changes the result\n{}", text::print(k));
        };
        let split = kiln_block::passes::split::run(&k);
        check("split", &split);
        let loops = |k: &BlockProgram| text::print(k).matches(" = for ").count();
        assert_eq!((loops(&k), loops(&split)), (1, 4), "{about}");
        for (before, dynamic) in [(k.clone(), false), (k.clone(), true), (split.clone(), false), (split, true)] {
            let launch =
                Launch { blocks: 2.min(before.instances().unwrap()), cluster: 1, group: 1, axes: None, dynamic };
            let walking = persistent::run(&before, launch).unwrap_or_else(|e| panic!("{about}: {e}"));
            check("persistent", &walking);
            for (left, right) in [(1, 2), (2, 3)] {
                let crew = roles::back_to_back_dots::WarpRoles {
                    consumers: k.warps / 4,
                    left,
                    right,
                    columns: Some(64),
                    depth: Some(64),
                };
                let roles = roles::back_to_back_dots::run(&walking, Some(crew), Arch::Sm90a.machine());
                let roles = roles.unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(&walking)));
                check("roles", &roles);
                let mut reads = false;
                roles.walk(&mut |_, d| reads |= d.op == Op::SharedLoad && !roles.ty(d.results[0]).is_scalar());
                assert_eq!(reads, !beside.is_empty(), "{about}\n{}", text::print(&roles));
                rings += usize::from(reads);
                let mut clean = roles.compacted();
                kiln_block::passes::canonicalise(&mut clean).unwrap();
                check("roles, canonical", &clean);
                let text = text::print(&clean);
                assert_eq!(text::parse(&text).unwrap().compacted(), clean, "{about}");
            }
        }
    }
    assert_eq!(rings, 8 * 40);
}
