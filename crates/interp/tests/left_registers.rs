//! Matmuls in tf32 whose left operand consumers read to registers, and results that are stored transposed: the passes
//! change no bit.
use kiln_block::passes::warpgroup::{Launch, WarpRoles, persistent, roles};
use kiln_block::{
    Array, BinaryOp, BlockProgram, Builder, Const, DotPrecision, Elem, Op, Swizzle, Type, UnaryOp, Value, passes, text,
    verify::verify,
};
use kiln_graph::Random;
use kiln_interp::block::{Buffer, run};
use kiln_machine::Arch;

/// A tiled matmul of f32 arrays: M, N, K, and rows of a tile; tiles have 64 columns.
#[derive(Clone, Copy, Debug)]
struct Plain {
    size: [usize; 3],
    rows: usize,
    /// The left operand is stored as `[K, M]`, else as `[M, K]`.
    outer: bool,
    /// The program rounds it to tf32.
    rounded: bool,
    /// The result is stored as `[N, M]`.
    transposed: bool,
    /// A second right operand, whose product the result is multiplied by.
    gated: bool,
}
const COLUMNS: usize = 64;
const DEPTH: usize = 32;

impl Plain {
    fn random(seed: u64) -> Plain {
        let mut r = Random::new(seed);
        let mut yes = || r.next_below(2) == 0;
        let [outer, transposed, gated] = [yes(), yes(), yes()];
        let rounded = yes() || !outer;
        let rows = 64 * (1 + r.next_below(2));
        let size = [4 * (1 + r.next_below(80)), 4 * (1 + r.next_below(40)), 4 * (1 + r.next_below(30))];
        Plain { size, rows, outer, rounded, transposed, gated }
    }
    fn kernel(&self) -> BlockProgram {
        let [m, n, k] = self.size;
        let mut b = Builder::new("plain", [m.div_ceil(self.rows), n.div_ceil(COLUMNS), 1], 4 * (self.rows / 64));
        let array = |[rows, columns]: [usize; 2], turned: bool| {
            if turned { [columns, rows] } else { [rows, columns] }
        };
        let mut desc = |name: &str, tile: [usize; 2], sizes: [usize; 2], turned: bool| {
            let (tile, sizes) = (array(tile, turned), array(sizes, turned));
            let array = Array { offset: 0, sizes: sizes.to_vec(), strides: vec![sizes[1], 1] };
            let ty = Type::Desc { elem: Elem::F32, shape: tile.to_vec(), swizzle: Swizzle::B128 };
            (b.descriptor(name, ty, array, name != "c"), tile)
        };
        let (a, a_tile) = desc("a", [self.rows, DEPTH], [m, k], self.outer);
        let rights = ["b", "g"].map(|name| desc(name, [COLUMNS, DEPTH], [n, k], false));
        let (c, _) = desc("c", [self.rows, COLUMNS], [m, n], self.transposed);
        let start = |b: &mut Builder, axis: u8, size: usize| {
            let (at, size) = (b.program_id(axis), b.i32(size as i64));
            b.binary(BinaryOp::Mul, at, size)
        };
        let (row, column) = (start(&mut b, 0, self.rows), start(&mut b, 1, COLUMNS));
        let (lo, hi, step) = (b.i32(0), b.i32(k as i64), b.i32(DEPTH as i64));
        let zero = b.constant(Type::block(Elem::F32, [self.rows, COLUMNS]), Const::Float(0.0));
        let count = 1 + usize::from(self.gated);
        let sums = b.for_loop([lo, hi, step], &vec![zero; count], |b, k, now| {
            let load = |b: &mut Builder, desc: Value, [x, y]: [Value; 2], tile: [usize; 2]| {
                b.inst(Op::TileLoad, &[desc, x, y], &[Type::block(Elem::F32, tile)], vec![])[0]
            };
            let mut left = load(b, a, if self.outer { [k, row] } else { [row, k] }, a_tile);
            if self.rounded {
                left = b.unary(UnaryOp::Tf32, left);
            }
            if self.outer {
                left = b.permute(left, &[1, 0]);
            }
            let rights: Vec<Value> = rights[..count]
                .iter()
                .map(|(desc, tile)| {
                    let tile = load(b, *desc, [column, k], *tile);
                    b.permute(tile, &[1, 0])
                })
                .collect();
            rights.iter().zip(now).map(|(right, now)| b.dot(left, *right, *now, DotPrecision::Tf32)).collect()
        });
        let mut value = sums[0];
        if self.gated {
            value = b.binary(BinaryOp::Mul, value, sums[1]);
        }
        let mut starts = [row, column];
        if self.transposed {
            (value, starts) = (b.permute(value, &[1, 0]), [column, row]);
        }
        b.inst(Op::TileStore, &[c, value, starts[0], starts[1]], &[], vec![]);
        b.finish()
    }
    /// Random operands, the left one in tf32 unless the program rounds it.
    fn buffers(&self, seed: u64) -> Vec<Buffer> {
        let mut r = Random::new(seed ^ 0x5eed);
        let [m, n, k] = self.size;
        let mut matrix = |rows: usize, columns: usize, of: usize| {
            let values: Vec<f64> = (0..rows * columns).map(|_| r.next_below(2 * of) as f64 / of as f64 - 1.0).collect();
            Buffer::from_f64(Elem::F32, &[rows, columns], values)
        };
        let left = matrix(m, k, if self.rounded { 1000 } else { 1024 });
        let rights = [matrix(n, k, 1024), matrix(n, k, 1024)];
        [&[left], &rights[..], &[matrix(m, n, 1000)]].concat()
    }
}

fn result(k: &BlockProgram, mut buffers: Vec<Buffer>, about: &str) -> Vec<u8> {
    verify(k).unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(k)));
    run(k, &mut buffers).unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(k)));
    buffers.pop().map_or(vec![], |b| b.bytes)
}

#[test]
fn every_step_keeps_every_bit() {
    let crew = |consumers: usize, ping_pong: bool, n: usize| {
        let columns = Some(n.min(COLUMNS));
        WarpRoles { consumers, stages: 2, ping_pong, columns, rows: None, buffers: None, last: None }
    };
    for seed in 0..16 {
        let plain = Plain::random(seed);
        let k = plain.kernel();
        let about = format!("seed {seed}: {plain:?}");
        let wanted = result(&k, plain.buffers(seed), &about);
        let single = persistent::run(&k, Launch { blocks: 2, cluster: 1, group: 3, ..Launch::of(&k, 132) }).unwrap();
        for crew in [crew(plain.rows / 64, false, plain.size[1]), crew(2, true, plain.size[1])] {
            let mut k = roles::run(&single, Some(crew), Arch::Sm90a.machine())
                .unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(&single)));
            let mut read = 0;
            k.walk(&mut |_, d| read += usize::from(d.left_in_registers().is_some()));
            assert!(read > 0, "{about}\n{}", text::print(&k));
            for name in ["roles", "canonical", "layouts"] {
                match name {
                    "canonical" => passes::canonicalise(&mut k).unwrap(),
                    "layouts" => passes::run(&["layout"], &mut k, Arch::Sm90a.machine()).unwrap(),
                    _ => {}
                }
                let got = result(&k, plain.buffers(seed), &format!("{about} after {name}"));
                assert!(got == wanted, "{about}, {crew:?}: {name} changes the result\n{}", text::print(&k));
            }
            // Neither operands nor results are exchanged between threads.
            k.walk(&mut |_, d| assert!(d.op != Op::ConvertLayout, "{about}\n{}", text::print(&k)));
        }
    }
}
