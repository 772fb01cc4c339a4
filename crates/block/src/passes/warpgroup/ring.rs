//! The ring of stages between producer and consumers (full and empty barriers, position in the ring), and the order of
//! ping-pong consumers.
use crate::{BinaryOp as B, Builder, CmpOp, Elem, Op, Swizzle, Type, Value};

/// Position in the ring: the stage, and the phase parity of its barriers.
#[derive(Clone, Copy)]
pub struct Ring {
    pub stage: Value,
    phase: Value,
}

impl Ring {
    pub fn of(values: &[Value]) -> Ring {
        Ring { stage: values[0], phase: values[1] }
    }
    pub fn values(self) -> [Value; 2] {
        [self.stage, self.phase]
    }
}

/// Consumers: hand back stages that threads have read themselves (`shared_load`). The fence keeps the next copies into
/// them behind these reads.
pub fn release_read(b: &mut Builder, stages: &[(&Rings, Value)]) {
    if !stages.is_empty() {
        b.inst(Op::FenceAsync, &[], &[], vec![]);
    }
    stages.iter().for_each(|(rings, stage)| rings.release(b, *stage));
}

#[derive(Clone)]
pub struct Rings {
    full: Value,
    empty: Value,
    stages: usize,
    /// Stages are released to the other blocks of the cluster, too.
    multicast: bool,
}

impl Rings {
    pub fn new(b: &mut Builder, stages: usize, consumers: usize, cluster: usize) -> Rings {
        let barriers = |b: &mut Builder, arrivals: usize| {
            b.inst(Op::AllocBarriers, &[], &[Type::Barrier { count: stages, arrivals }], vec![])[0]
        };
        let (full, empty) = (barriers(b, 1), barriers(b, consumers * cluster));
        Rings { full, empty, stages, multicast: cluster > 1 }
    }
    pub fn next(&self, b: &mut Builder, ring: Ring) -> Ring {
        let (one, zero, all) = (b.i32(1), b.i32(0), b.i32(self.stages as i64));
        let stage = b.binary(B::Add, ring.stage, one);
        let wraps = b.cmp(CmpOp::Eq, stage, all);
        let turn = b.cast(wraps, Elem::I32);
        Ring { stage: b.select(wraps, zero, stage), phase: b.binary(B::Xor, ring.phase, turn) }
    }
    /// The parity of the number of stages that lie behind a position.
    pub fn passed(&self, b: &mut Builder, ring: Ring) -> Value {
        // All rounds behind it have as many stages as the ring; the phase is the parity of the rounds.
        let stages = match self.stages % 2 {
            0 => ring.stage,
            _ => b.binary(B::Xor, ring.stage, ring.phase),
        };
        let one = b.i32(1);
        b.binary(B::And, stages, one)
    }
    /// The position `n` stages further.
    pub fn skip(&self, b: &mut Builder, ring: Ring, n: Value) -> Ring {
        let (one, all) = (b.i32(1), b.i32(self.stages as i64));
        let to = b.binary(B::Add, ring.stage, n);
        let turns = b.binary(B::Div, to, all);
        let odd = b.binary(B::And, turns, one);
        Ring { stage: b.binary(B::Rem, to, all), phase: b.binary(B::Xor, ring.phase, odd) }
    }
    fn wait_empty(&self, b: &mut Builder, ring: Ring) {
        let one = b.i32(1);
        let free = b.binary(B::Xor, ring.phase, one);
        b.inst(Op::BarrierWait, &[self.empty, ring.stage, free], &[], vec![]);
    }
    /// Producer: waits until the stage is empty, and announces the bytes that will arrive.
    pub fn claim(&self, b: &mut Builder, ring: Ring, bytes: usize) {
        self.wait_empty(b, ring);
        b.inst(Op::BarrierExpect { bytes: bytes as u32 }, &[self.full, ring.stage], &[], vec![]);
    }
    /// Starts the copy of a tile (shared tile, its stage, descriptor), which completes on the stage's full barrier.
    pub fn load(&self, b: &mut Builder, what: [Value; 3], ring: Ring, starts: &[Value], multicast: bool) {
        let args = [&what[..], &[self.full, ring.stage], starts].concat();
        b.inst(Op::TmaLoad { multicast }, &args, &[], vec![]);
    }
    /// Consumers: wait until the stage is full.
    pub fn wait(&self, b: &mut Builder, ring: Ring) {
        b.inst(Op::BarrierWait, &[self.full, ring.stage, ring.phase], &[], vec![]);
    }
    /// Consumers: hand back a stage that matmuls have read, which were waited for.
    pub fn release(&self, b: &mut Builder, stage: Value) {
        b.inst(Op::BarrierArrive { multicast: self.multicast }, &[self.empty, stage], &[], vec![]);
    }
}

/// The numbers that the producer draws, on their way to the consumers: a ring of scalars.
pub struct Numbers {
    rings: Rings,
    tile: Value,
}

impl Numbers {
    /// One that is read, and the next one.
    const STAGES: usize = 2;
    pub fn new(b: &mut Builder, consumers: usize) -> Numbers {
        let ty = Type::Shared { elem: Elem::I32, shape: vec![], stages: Numbers::STAGES, swizzle: Swizzle::None };
        let tile = b.inst(Op::AllocShared, &[], &[ty], vec![])[0];
        Numbers { rings: Rings::new(b, Numbers::STAGES, consumers, 1), tile }
    }
    /// Producer: hands a number to all consumers.
    pub fn send(&self, b: &mut Builder, ring: Ring, number: Value) -> Ring {
        self.rings.wait_empty(b, ring);
        b.inst(Op::SharedStore, &[self.tile, ring.stage, number], &[], vec![]);
        b.inst(Op::BarrierArrive { multicast: false }, &[self.rings.full, ring.stage], &[], vec![]);
        self.rings.next(b, ring)
    }
    /// Consumers: the next number.
    pub fn receive(&self, b: &mut Builder, ring: Ring) -> (Value, Ring) {
        self.rings.wait(b, ring);
        let number = b.inst(Op::SharedLoad, &[self.tile, ring.stage], &[Type::scalar(Elem::I32)], vec![])[0];
        self.rings.release(b, ring.stage);
        (number, self.rings.next(b, ring))
    }
}

/// The order of ping-pong consumers: each waits for the one before it to have started its matmuls. The ring's barriers
/// alone would not do, as a parity distinguishes a phase only from the next one: a consumer may wait for a stage only
/// once those before it have been through theirs.
#[derive(Clone)]
pub struct PingPong {
    ready: Value,
    consumers: usize,
}

impl PingPong {
    pub fn new(b: &mut Builder, consumers: usize) -> PingPong {
        let ty = Type::Barrier { count: consumers, arrivals: 1 };
        PingPong { ready: b.inst(Op::AllocBarriers, &[], &[ty], vec![])[0], consumers }
    }
    /// The parity that a consumer waits for first; the first consumer starts at once.
    pub fn first(&self, b: &mut Builder, consumer: Value) -> Value {
        let zero = b.i32(0);
        let now = b.cmp(CmpOp::Eq, consumer, zero);
        b.cast(now, Elem::I32)
    }
    pub fn wait(&self, b: &mut Builder, consumer: Value, parity: Value) {
        b.inst(Op::BarrierWait, &[self.ready, consumer, parity], &[], vec![]);
    }
    /// Lets the next consumer multiply.
    pub fn pass(&self, b: &mut Builder, consumer: Value) {
        let (one, all) = (b.i32(1), b.i32(self.consumers as i64));
        let next = b.binary(B::Add, consumer, one);
        let next = b.binary(B::Rem, next, all);
        b.inst(Op::BarrierArrive { multicast: false }, &[self.ready, next], &[], vec![]);
    }
}
