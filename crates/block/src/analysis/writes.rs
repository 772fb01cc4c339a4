//! Which parameters a program writes and reads through.
//!
//! Pointers flow through pointer arithmetic, selections, loops and branches. Values that flow into each other form a
//! class, and what is done through one of them is done through its class.
use crate::{BlockProgram, Effects, InstData, Op, Region, Type, Value};

/// What a program does to memory, by pointers.
pub struct Writes {
    classes: Classes,
    written: Vec<u32>,
    updated: Vec<u32>,
    read: Vec<u32>,
    anywhere: bool,
}

impl Writes {
    /// Follows the pointers of a program.
    pub fn of(program: &BlockProgram) -> Writes {
        let mut classes = Classes((0..program.values.len() as u32).collect());
        let (mut written, mut updated, mut read, mut anywhere) = (vec![], vec![], vec![], false);
        program.walk(&mut |_, inst| {
            join_flows(program, inst, &mut classes);
            let updates = matches!(inst.op, Op::Atomic { .. } | Op::CompareSwap { .. } | Op::AtomicInc);
            let writes = updates || matches!(inst.op, Op::Store(_) | Op::Publish);
            // Assembly may write through whatever it gets, addresses as integers too.
            anywhere |= matches!(&inst.op, Op::Asm(assembly) if assembly.effects == Effects::Volatile);
            let reads = matches!(inst.op, Op::Load(..) | Op::Await);
            match inst.args.first() {
                Some(pointer) if reads => read.push(pointer.0),
                Some(pointer) if writes => {
                    written.push(pointer.0);
                    updated.extend(updates.then_some(pointer.0));
                }
                _ => anywhere |= makes_pointers(program, inst),
            }
        });
        let roots = |all: Vec<u32>| -> Vec<u32> { all.into_iter().map(|v| classes.root(v)).collect() };
        let [written, updated, read] = [written, updated, read].map(roots);
        Writes { classes, written, updated, read, anywhere }
    }
    /// Whether a store or an update goes through this pointer, as far as pointers are followed.
    pub fn through(&self, pointer: Value) -> bool {
        self.written.contains(&self.classes.root(pointer.0))
    }
    /// Whether memory that a pointer leads to is not written while the program runs: it is that of read-only parameters.
    pub fn is_readonly(&self, program: &BlockProgram, pointer: Value) -> bool {
        let class = self.classes.root(pointer.0);
        let mut params = program.params.iter().filter(|p| self.classes.root(p.value.0) == class).peekable();
        params.peek().is_some() && params.all(|p| p.readonly)
    }
    /// Whether memory that a pointer leads to is not written while a region of the program runs: it is read-only, or the
    /// region writes to no memory and waits for nobody who might.
    pub fn is_unwritten_in(&self, program: &BlockProgram, region: &Region, pointer: Value) -> bool {
        let mut writes = false;
        program.walk_region(region, &mut |_, inst| {
            let reads = matches!(inst.op, Op::Load(..) | Op::For | Op::While | Op::If | Op::Yield);
            writes |= !reads && !inst.op.is_pure();
        });
        !writes || self.is_readonly(program, pointer)
    }
    /// Whether two pointers may lead to memory of one parameter, as far as pointers are followed.
    pub fn share_memory(&self, a: Value, b: Value) -> bool {
        self.classes.root(a.0) == self.classes.root(b.0)
    }
    /// Whether a load goes through this pointer, as far as pointers are followed.
    pub fn reads(&self, pointer: Value) -> bool {
        self.read.contains(&self.classes.root(pointer.0))
    }
    /// Whether elements are combined with what is there before.
    pub fn updates(&self, pointer: Value) -> bool {
        self.updated.contains(&self.classes.root(pointer.0))
    }
    /// Whether pointers are made of numbers, which may point anywhere.
    pub fn anywhere(&self) -> bool {
        self.anywhere
    }
}

/// Whether an op makes a pointer out of a number, which may point anywhere.
fn makes_pointers(program: &BlockProgram, inst: &InstData) -> bool {
    let pointer = |value: &&Value| matches!(program.ty(**value), Type::Ptr { .. });
    inst.regions.is_empty() && inst.results.iter().any(|v| pointer(&v)) && !inst.args.iter().any(|v| pointer(&v))
}

fn join_flows(program: &BlockProgram, inst: &InstData, classes: &mut Classes) {
    let yields = |region: &Region| -> Vec<Value> {
        region.insts.last().map(|last| program.inst(*last).args.clone()).unwrap_or_default()
    };
    match inst.op {
        Op::For => {
            let carried = inst.args.iter().skip(3);
            for region in &inst.regions {
                let parameters = region.params.iter().skip(1);
                classes.join_all(parameters.clone(), carried.clone());
                classes.join_all(parameters, yields(region).iter());
                classes.join_all(inst.results.iter(), yields(region).iter());
            }
        }
        Op::While => {
            for region in &inst.regions {
                classes.join_all(region.params.iter(), inst.args.iter());
                classes.join_all(region.params.iter(), yields(region).iter().skip(1));
                classes.join_all(inst.results.iter(), yields(region).iter().skip(1));
            }
        }
        Op::If => {
            for region in &inst.regions {
                classes.join_all(inst.results.iter(), yields(region).iter());
            }
        }
        // Loads of pointers do not exist: what is loaded through a pointer has no part in its class.
        Op::Load(..) => {}
        _ => {
            for (arg, result) in inst.args.iter().flat_map(|arg| inst.results.iter().map(move |r| (arg, r))) {
                let pointers = [arg, result].map(|value| matches!(program.ty(*value), Type::Ptr { .. }));
                if pointers == [true, true] {
                    classes.join(arg.0, result.0);
                }
            }
        }
    }
}

/// Values in classes: each leads to another of its class, or is its root.
struct Classes(Vec<u32>);

impl Classes {
    fn root(&self, mut value: u32) -> u32 {
        while self.0[value as usize] != value {
            value = self.0[value as usize];
        }
        value
    }
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a as usize] = b;
    }
    fn join_all<'v>(&mut self, a: impl Iterator<Item = &'v Value>, b: impl Iterator<Item = &'v Value>) {
        a.zip(b).for_each(|(a, b)| self.join(a.0, b.0));
    }
}
