//! Persistent kernels over tiles: blocks loop over the tiles of the result with a grid stride, in an order that keeps
//! operands in the L2 cache; the two blocks of a cluster have tiles one below the other.
//!
//! Takes a program of one tile per instance; gives one with a loop over tiles around it. Blocks take tiles with a fixed
//! stride, or draw them from a counter as they become free, which evens out tiles of different length. The axes of the
//! grid along which the matmul's left and right operands move are its rows and columns; the others are batches.
use super::Refusal;
use crate::{BinaryOp as B, BlockProgram, Builder, CmpOp, Const, Elem, Op, Type, Value};
use std::collections::HashMap;

/// Rows of tiles that are visited before the next column of tiles.
pub const GROUP: usize = 16;
/// Alignment of the counter, in bytes.
const ALIGN: usize = 4;

/// The number of persistent blocks, the size of their clusters, and the order of tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    pub blocks: usize,
    pub cluster: usize,
    /// Rows of tiles that are visited before the next column, where the axes are known.
    pub group: usize,
    /// The axes of the grid that are rows and columns of the matmul; `None`: tiles in the grid's own order.
    pub axes: Option<[usize; 2]>,
    /// Blocks draw tiles from a counter in memory, in order, as they become free; else they take them with the grid's
    /// stride. Worth it where tiles differ in length.
    pub dynamic: bool,
}

/// The tiles of a launch, and the grid whose instances they are.
struct Tiles {
    grid: [usize; 3],
    rows: usize,
    columns: usize,
    batch: usize,
}

impl Launch {
    /// As many blocks as there are multiprocessors, at most one per tile; clusters of two where the tile is large and
    /// the number of rows of tiles is even. No blocks for a grid that is not a constant, which [`run`] refuses.
    pub fn of(k: &BlockProgram, processors: usize) -> Launch {
        let axes = axes(k);
        let Some(tiles) = Tiles::of(k, axes) else {
            return Launch { blocks: 0, cluster: 1, group: GROUP, axes, dynamic: false };
        };
        let all = tiles.count();
        let mut sums = 0;
        let mut half = true;
        k.walk(&mut |_, d| {
            if matches!(d.op, Op::Dot { .. }) {
                sums += k.ty(d.results[0]).count();
                half &= k.ty(d.args[0]).elem().is_some_and(|e| e.bytes() == 2);
            }
        });
        let pairs = axes.is_some() && tiles.rows.is_multiple_of(2) && half && sums >= 128 * 256 && all >= processors;
        let cluster = if pairs { 2 } else { 1 };
        Launch { blocks: all.min(processors / cluster * cluster), cluster, group: GROUP, axes, dynamic: false }
    }
}

impl Tiles {
    /// `None` if the grid is not a constant.
    fn of(k: &BlockProgram, axes: Option<[usize; 2]>) -> Option<Tiles> {
        let (grid, all) = (k.grid.constant()?, k.instances()?);
        let [rows, columns] = axes.map_or([all, 1], |a| a.map(|a| grid[a]));
        Some(Tiles { grid, rows, columns, batch: all / (rows * columns).max(1) })
    }
    fn count(&self) -> usize {
        self.rows * self.columns * self.batch
    }
}

/// Axes of the grid that move the left and the right operand of the first matmul, one each.
fn axes(k: &BlockProgram) -> Option<[usize; 2]> {
    let mut moved: HashMap<Value, u8> = HashMap::new();
    let mut sides = None;
    // Twice, as carried values feed back.
    for _ in 0..2 {
        k.walk(&mut |_, d| {
            let of = |v: &Value| moved.get(v).copied().unwrap_or(0);
            let mut all = d.args.iter().map(of).fold(0, |a, b| a | b);
            match &d.op {
                Op::ProgramId(axis) => all = 1 << axis,
                Op::Dot { .. } => sides = Some([of(&d.args[0]), of(&d.args[1])]),
                Op::For => {
                    let region = &d.regions[0];
                    let next = region.insts.last().map(|i| &k.inst(*i).args[..]).unwrap_or_default();
                    let carried: Vec<u8> = d.args[3..].iter().zip(next).map(|(a, b)| of(a) | of(b)).collect();
                    for (n, m) in carried.into_iter().enumerate() {
                        moved.insert(region.params[1 + n], m);
                        moved.insert(d.results[n], m);
                    }
                    return;
                }
                _ => {}
            }
            d.results.iter().for_each(|v| _ = moved.insert(*v, all));
        });
    }
    let [left, right] = sides?;
    let (rows, columns) = (left & !right, right & !left);
    // Along an axis of size 1 nothing moves.
    let still = |not: u8| (0..3).find(|a| k.grid.along(*a as u8) == Some(1) && (left | right | not) >> a & 1 == 0);
    let one = |moving: u8, not: u8| match moving.count_ones() {
        0 => still(not),
        1 => Some(moving.trailing_zeros() as usize),
        _ => None,
    };
    let row = one(rows, 0)?;
    Some([row, one(columns, 1 << row)?])
}

/// The program with a loop over tiles.
pub fn run(kernel: &BlockProgram, launch: Launch) -> Result<BlockProgram, Refusal> {
    let Some(tiles) = Tiles::of(kernel, launch.axes) else {
        return Err(Refusal("the grid is not a constant of the program".into()));
    };
    let count = tiles.count();
    let Launch { blocks, cluster, axes, .. } = launch;
    if kernel.cluster != 1 || kernel.body.insts.iter().any(|i| matches!(kernel.inst(*i).op, Op::Roles(_))) {
        return Err(Refusal("the program has clusters or roles already".into()));
    }
    if count == 0 || blocks == 0 || cluster == 0 || !blocks.is_multiple_of(cluster) || count >= 1 << 30 {
        return Err(Refusal(format!("{count} tiles for {blocks} blocks in clusters of {cluster}")));
    }
    if launch.dynamic && (cluster > 1 || blocks > count) {
        return Err(Refusal(format!(
            "{blocks} blocks in clusters of {cluster} do not draw {count} tiles from a counter"
        )));
    }
    if cluster > 1 && (axes.is_none() || !tiles.rows.is_multiple_of(cluster)) {
        return Err(Refusal(format!("{} rows of tiles are not shared by clusters of {cluster}", tiles.rows)));
    }
    let mut b = Builder::of(kernel.clone());
    let number = b.program_id(0);
    let (first, rank) = match cluster {
        1 => (number, None),
        n => {
            let n = int(&mut b, n);
            (b.binary(B::Div, number, n), Some(b.binary(B::Rem, number, n)))
        }
    };
    let bounds = [first, int(&mut b, count / cluster), int(&mut b, blocks / cluster)];
    let tile = |b: &mut Builder, t: Value| {
        let place = place(b, &tiles, launch, t, rank);
        rename(b, kernel, place, tiles.grid);
        // What only computed the old positions is dead now; `dce` removes it.
        b.append(kernel.body.insts.clone());
    };
    match launch.dynamic {
        false => {
            _ = b.for_loop(bounds, &[], |b, t, _| {
                tile(b, t);
                vec![]
            })
        }
        true => b.while_loop(&[number], |b, now| {
            let Drawn { more, next } = draw(b, blocks, count);
            let t = within(b, now[0], count);
            tile(b, t);
            (more, vec![next])
        }),
    }
    b.set_grid([blocks, 1, 1]);
    b.set_cluster(cluster);
    Ok(b.finish())
}

fn int(b: &mut Builder, n: usize) -> Value {
    b.i32(n as i64)
}

/// Whether there is a next tile, and its number.
struct Drawn {
    more: Value,
    next: Value,
}

/// Draws the next tile. All blocks together draw `count` times, so that the counter is back at 0 after the last one.
fn draw(b: &mut Builder, blocks: usize, count: usize) -> Drawn {
    let counter = b.param("counter", Elem::I32, false);
    b.params_mut().last_mut().into_iter().for_each(|p| p.align = ALIGN);
    let limit = int(b, count - 1);
    let drawn = b.inst(Op::AtomicInc, &[counter, limit], &[Type::scalar(Elem::I32)], vec![])[0];
    // The first tiles are those of the blocks' numbers.
    let (blocks, count) = (int(b, blocks), int(b, count));
    let next = b.binary(B::Add, drawn, blocks);
    Drawn { more: b.cmp(CmpOp::Lt, next, count), next }
}

/// The number of a tile, which is in range, so that analysis sees it.
fn within(b: &mut Builder, t: Value, count: usize) -> Value {
    let least = b.i32(0);
    let t = b.binary(B::Max, t, least);
    at_most(b, t, count - 1)
}

/// A number that is no larger, so that analysis sees it.
fn at_most(b: &mut Builder, t: Value, most: usize) -> Value {
    let most = int(b, most);
    b.binary(B::Min, t, most)
}

/// Tile number to positions along the grid's axes: batches are outermost, then groups of rows of tiles; within a
/// group, column by column.
fn place(b: &mut Builder, tiles: &Tiles, launch: Launch, t: Value, rank: Option<Value>) -> [Value; 3] {
    let grid = tiles.grid;
    let Launch { cluster, group, .. } = launch;
    let Some([row_axis, column_axis]) = launch.axes else {
        return split(b, t, &[0, 1, 2], grid, [t; 3]);
    };
    let (rows, columns) = (tiles.rows / cluster, tiles.columns);
    let (mut t, mut batch) = (t, None);
    if tiles.batch > 1 {
        let per = int(b, rows * columns);
        batch = Some(b.binary(B::Div, t, per));
        t = b.binary(B::Rem, t, per);
    }
    let group = (group / cluster).clamp(1, rows);
    let (g, per) = (int(b, group), int(b, group * columns));
    let (index, within) = (b.binary(B::Div, t, per), b.binary(B::Rem, t, per));
    let start = b.binary(B::Mul, index, g);
    let size = if rows.is_multiple_of(group) {
        g
    } else {
        let all = int(b, rows);
        let left = b.binary(B::Sub, all, start);
        b.binary(B::Min, left, g)
    };
    let (mut column, row) = (b.binary(B::Div, within, size), b.binary(B::Rem, within, size));
    let mut row = b.binary(B::Add, start, row);
    if !rows.is_multiple_of(group) {
        // The last group has fewer rows and fewer tiles, which analysis does not see together: it would bound
        // columns by those of a whole group divided by the rows of the last.
        (column, row) = (at_most(b, column, columns - 1), at_most(b, row, rows - 1));
    }
    if let Some(rank) = rank {
        let c = int(b, cluster);
        row = b.binary(B::Mul, row, c);
        row = b.binary(B::Add, row, rank);
    }
    let mut place = [row; 3];
    place[column_axis] = column;
    let others: Vec<usize> = (0..3).filter(|a| *a != row_axis && *a != column_axis).collect();
    let rest = batch.unwrap_or_else(|| b.i32(0));
    split(b, rest, &others, grid, place)
}

/// A number as positions along `axes`, the first axis fastest.
fn split(b: &mut Builder, mut number: Value, axes: &[usize], grid: [usize; 3], mut place: [Value; 3]) -> [Value; 3] {
    for (i, &axis) in axes.iter().enumerate() {
        let n = int(b, grid[axis]);
        place[axis] = match i + 1 == axes.len() {
            true => number,
            false => b.binary(B::Rem, number, n),
        };
        number = b.binary(B::Div, number, n);
    }
    place
}

/// Replaces positions in the grid of a program by `place`, and its sizes by constants.
fn rename(b: &mut Builder, kernel: &BlockProgram, place: [Value; 3], grid: [usize; 3]) {
    let k = b.program_mut();
    kernel.walk(&mut |i, d| match d.op {
        Op::ProgramId(axis) => k.replace(d.results[0], place[axis as usize]),
        Op::NumPrograms(axis) => k.inst_mut(i).op = Op::Const(Const::Int(grid[axis as usize] as i64)),
        _ => {}
    });
}
