//! The consumers: products over the ring, then the epilogue on parts of the tile, each sent out while the next is computed.
use super::operand::{Major, Strided, swizzle};
use super::shape::{BUFFERS, Engine, Shape};
use super::{Ring, Shared, Spot, Used, Writer};
use crate::dag::{Scene, Store};
use crate::emit::Lanes;
use crate::math;
use crate::tile::{Cut, Frame, loads};
use kiln_block::{BinaryOp as B, Builder, Const, Elem, Op, Type, Value};
use kiln_graph::DType;

/// How a store goes out: by tensor map (the map, and later the shared tile it goes through), or element by element.
#[derive(Clone, Copy)]
pub struct Out {
    map: Value,
    elem: Elem,
    tile: Option<Value>,
}

/// Buffers the program reads and writes by address.
pub fn used(scene: &Scene, outputs: &[Option<Strided>]) -> Vec<Used> {
    let mut all = loads(&scene.dag, &scene.roots(), |_| false);
    let plain = scene.stores.iter().zip(outputs).filter(|(_, o)| o.is_none());
    all.extend(plain.map(|(s, _)| (s.slot, s.dtype, false)));
    all
}

/// Bytes of the types that go out through shared memory, each once.
pub fn widths(outputs: &[Option<Strided>], stores: &[Store]) -> Vec<usize> {
    let mut all: Vec<DType> = stores.iter().zip(outputs).filter(|(_, o)| o.is_some()).map(|(s, _)| s.dtype).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(DType::bytes).collect()
}

/// Columns that are finished together.
fn columns(outputs: &[Option<Out>], s: Shape) -> usize {
    let bytes: Vec<usize> = outputs.iter().flatten().map(|o| o.elem.bytes()).collect();
    s.columns(&bytes)
}

/// Descriptors of the outputs.
pub fn maps(f: &mut Frame, outputs: &[Option<Strided>], stores: &[Store], s: Shape) -> Vec<Option<Out>> {
    let columns = s.columns(&widths(outputs, stores));
    let one = |(i, (store, out)): (usize, (&Store, &Option<Strided>))| {
        let elem = math::stored(store.dtype);
        let out = out.as_ref()?;
        let map = f.descriptor(&format!("c{i}"), out.slot, out.map(elem, [s.rows(), columns]), false);
        Some(Out { map, elem, tile: None })
    };
    stores.iter().zip(outputs).enumerate().map(one).collect()
}

/// Shared tiles that results go through, one ring per element type.
pub fn tiles(b: &mut Builder, mut outputs: Vec<Option<Out>>, s: Shape) -> Vec<Option<Out>> {
    let columns = columns(&outputs, s);
    let mut made: Vec<(Elem, Value)> = vec![];
    for out in outputs.iter_mut().flatten() {
        let known = made.iter().find(|m| m.0 == out.elem).map(|m| m.1);
        let tile = known.unwrap_or_else(|| {
            let shape = vec![s.rows(), columns];
            let ty =
                Type::Shared { elem: out.elem, shape, stages: s.copies * BUFFERS, swizzle: swizzle(out.elem, columns) };
            b.inst(Op::AllocShared, &[], &[ty], vec![])[0]
        });
        made.push((out.elem, tile));
        out.tile = Some(tile);
    }
    outputs
}

pub fn consume(w: &Writer, f: &mut Frame, b: &mut Builder, s: &Shared, copy: Option<Value>, outputs: &[Option<Out>]) {
    w.over_tiles(b, s, |b, spot, ring| {
        let (sums, ring) = match w.shape.engine {
            Engine::TensorCores => multiply(w, b, s, copy, ring),
            Engine::MultiplyAdds => multiply_add(w, b, s, copy, ring),
        };
        std::mem::swap(b, &mut f.b);
        f.em.enter();
        finish(w, f, &spot, copy, sums, outputs);
        f.em.leave();
        std::mem::swap(b, &mut f.b);
        ring
    });
    if outputs.iter().any(Option::is_some) {
        b.inst(Op::TmaStoreWait { pending: 0 }, &[], &[], vec![]);
    }
}

/// The sums over all of K. The first product starts the sums; one group of products stays in flight over a stage's end.
fn multiply(w: &Writer, b: &mut Builder, s: &Shared, copy: Option<Value>, ring: Ring) -> (Value, Ring) {
    let z = w.shape;
    let token = Type::Token { elem: Elem::F32, shape: vec![z.rows(), z.n] };
    let op = Op::Wgmma { transpose_a: w.a.major == Major::Outer, transpose_b: w.b.major == Major::Depth };
    let product = |b: &mut Builder, ring: Ring, sums: Value| {
        b.inst(Op::BarrierWait, &[s.full, ring.stage, ring.phase], &[], vec![]);
        let tile = left_tile(z, b, ring, copy);
        let token = b.inst(op.clone(), &[s.a, tile, s.b, ring.stage, sums], std::slice::from_ref(&token), vec![])[0];
        b.inst(Op::WgmmaCommit, &[], &[], vec![]);
        token
    };
    let release = |b: &mut Builder, stage: Value| {
        b.inst(Op::BarrierArrive { multicast: z.cluster > 1 }, &[s.empty, stage], &[], vec![]);
    };
    let none = b.constant(Type::block(Elem::F32, [z.rows(), z.n]), Const::Float(0.0));
    let started = product(b, ring, none);
    let next = ring.next(b, z.stages);
    let (one, last) = (b.i32(1), b.i32(z.depths as i64));
    let carried = [next.stage, next.phase, ring.stage, started];
    let out = b.for_loop([one, last, one], &carried, |b, _, now| {
        let ring = Ring::of(now);
        let sums = product(b, ring, now[3]);
        b.inst(Op::WgmmaWait { pending: 1 }, &[], &[], vec![]);
        release(b, now[2]);
        let next = ring.next(b, z.stages);
        vec![next.stage, next.phase, ring.stage, sums]
    });
    let sums = Type::block(Elem::F32, [z.rows(), z.n]);
    let sums = b.inst(Op::WgmmaWait { pending: 0 }, &[out[3]], &[sums], vec![])[0];
    release(b, out[2]);
    (sums, Ring::of(&out))
}

/// Number of a consumer's tile of the left operand in the ring.
fn left_tile(z: Shape, b: &mut Builder, ring: Ring, copy: Option<Value>) -> Value {
    let Some(copy) = copy else { return ring.stage };
    let n = b.i32(z.copies as i64);
    let at = b.binary(B::Mul, ring.stage, n);
    b.binary(B::Add, at, copy)
}

/// The sums over all of K in f32, stage by stage.
fn multiply_add(w: &Writer, b: &mut Builder, s: &Shared, copy: Option<Value>, ring: Ring) -> (Value, Ring) {
    let z = w.shape;
    let sums = Type::block(Elem::F32, [z.rows(), z.n]);
    let op = Op::SharedDot { transpose_a: w.a.major == Major::Outer, transpose_b: w.b.major == Major::Depth };
    let none = b.constant(sums.clone(), Const::Float(0.0));
    let (zero, one, last) = (b.i32(0), b.i32(1), b.i32(z.depths as i64));
    let out = b.for_loop([zero, last, one], &[ring.stage, ring.phase, none], |b, _, now| {
        let ring = Ring::of(now);
        b.inst(Op::BarrierWait, &[s.full, ring.stage, ring.phase], &[], vec![]);
        let tile = left_tile(z, b, ring, copy);
        let args = [s.a, tile, s.b, ring.stage, now[2]];
        let sums = b.inst(op.clone(), &args, std::slice::from_ref(&sums), vec![])[0];
        b.inst(Op::BarrierArrive { multicast: z.cluster > 1 }, &[s.empty, ring.stage], &[], vec![]);
        let next = ring.next(b, z.stages);
        vec![next.stage, next.phase, sums]
    });
    (out[2], Ring::of(&out))
}

/// The epilogue, some columns at a time.
fn finish(w: &Writer, f: &mut Frame, spot: &Spot, copy: Option<Value>, sums: Value, outputs: &[Option<Out>]) {
    let (z, c, p) = (w.shape, w.task.coords, w.task.product);
    let row = match copy {
        None => spot.m,
        Some(copy) => {
            let n = f.b.i32(z.rows() as i64);
            let at = f.b.binary(B::Mul, copy, n);
            f.b.binary(B::Add, spot.m, at)
        }
    };
    for (i, position) in spot.batch.iter().enumerate() {
        let base = f.b.cast(*position, f.em.index);
        f.em.coords.insert(i as u32, Lanes { base: Some(base), lane: None, mask: None });
    }
    let rows = lanes(f, Cut { id: c.m, extent: p.m, block: z.rows(), axis: 0 }, row, z.m);
    f.em.coords.insert(c.m, rows);
    let columns = columns(outputs, z);
    let stores = w.task.scene.stores.iter().zip(outputs);
    let sent = z.n / columns * outputs.iter().flatten().count();
    let mut turn = 0;
    for part in 0..z.n / columns {
        let first = f.b.i32((part * columns) as i64);
        let column = f.b.binary(B::Add, spot.n, first);
        f.em.enter();
        let lanes = lanes(f, Cut { id: c.n, extent: p.n, block: columns, axis: 1 }, column, z.n);
        f.em.coords.insert(c.n, lanes);
        let value = f.b.part(sums, 1, part * columns, columns);
        f.em.set(w.task.anchor, value);
        for (i, (store, out)) in stores.clone().enumerate() {
            let Some(out) = out else {
                f.store(store);
                continue;
            };
            let v = f.em.value(&mut f.b, store.value);
            let v = f.b.cast(v, out.elem);
            let v = f.b.broadcast_to(v, &[z.rows(), columns]);
            let array = w.outputs[i].as_ref().map(|o| o.starts(&spot.batch, row, column)).unwrap_or_default();
            // An odd number of stores would meet the last tile's buffer again at once.
            let pending = if sent.is_multiple_of(BUFFERS) { BUFFERS - 1 } else { 0 };
            send(&mut f.b, *out, v, copy, turn % BUFFERS, pending as u8, &array);
            turn += 1;
        }
        f.em.leave();
    }
}

/// Through a buffer in shared memory, when the store before the last has read its own.
fn send(b: &mut Builder, out: Out, v: Value, copy: Option<Value>, buffer: usize, pending: u8, starts: &[Value]) {
    let Some(tile) = out.tile else { return };
    let mut at = b.i32(buffer as i64);
    if let Some(copy) = copy {
        let n = b.i32(BUFFERS as i64);
        let mine = b.binary(B::Mul, copy, n);
        at = b.binary(B::Add, mine, at);
    }
    b.inst(Op::TmaStoreWait { pending }, &[], &[], vec![]);
    b.inst(Op::Sync, &[], &[], vec![]);
    b.inst(Op::SharedStore, &[tile, at, v], &[], vec![]);
    b.inst(Op::FenceAsync, &[], &[], vec![]);
    b.inst(Op::Sync, &[], &[], vec![]);
    b.inst(Op::TmaStore, &[&[out.map, tile, at], starts].concat(), &[], vec![]);
}

/// Lanes of a cut from `first` on (i32); `step`: what tiles advance by.
fn lanes(f: &mut Frame, cut: Cut, first: Value, step: usize) -> Lanes {
    let base = f.b.cast(first, f.em.index);
    let lane = f.iota(cut);
    let ragged = !cut.extent.is_multiple_of(step);
    let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, cut.extent));
    Lanes { base: Some(base), lane, mask }
}
