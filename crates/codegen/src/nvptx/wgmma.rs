//! Matmuls by warpgroups (`wgmma`): operands in shared memory addressed by matrix descriptors, accumulators in
//! registers that stay tied to the instructions until they are waited for.
use super::emit::{Fail, Res, Val, int, is_zero, mistyped};
use super::r#gen::Gen;
use super::index::Reg;
use super::tiles::Tile;
use inkwell::types::BasicTypeEnum;
use inkwell::values::IntValue;
use kiln_block::{Elem, InstData, Op, Swizzle, Value};

/// Bytes of K per instruction.
const STEP: usize = 32;
/// Bits of a thread's number in its warpgroup.
const WARPGROUP: usize = 7;

/// Registers of a left operand per instruction: 16 columns of 16 bits, two to a register, or 8 of 32 bits.
const REGISTERS: usize = 4;

/// A left operand: a tile, or registers of 32 bits.
enum Left<'c> {
    Tile(Operand<'c>),
    Registers(Vec<Val<'c>>),
}

/// The instruction's name of an element type, and how many elements of K it takes (32 bytes). `None`: no such matmul.
fn operand_type(elem: Elem) -> Option<(&'static str, usize)> {
    let name = match elem {
        Elem::F32 => "tf32",
        Elem::F16 => "f16",
        Elem::Bf16 => "bf16",
        Elem::F8e4m3 => "e4m3",
        Elem::F8e5m2 => "e5m2",
        Elem::I8 => "s8",
        Elem::U8 => "u8",
        _ => return None,
    };
    Some((name, STEP / elem.bytes()))
}

/// An operand: the matrix descriptor of its first 64 rows (or all columns) at K = 0, and the steps from there, in units
/// of 16 bytes.
struct Operand<'c> {
    base: IntValue<'c>,
    tile: Tile,
    /// M- or N-major: each row of the tile is one position of K.
    transposed: bool,
}
impl Operand<'_> {
    /// Offset of step `n` along K.
    fn step(&self, n: usize) -> usize {
        if self.transposed {
            // Sixteen rows of K further.
            return n * STEP / self.tile.elem.bytes() * self.tile.row_bytes() / 16;
        }
        let byte = n * STEP;
        (byte / self.tile.row_bytes() * self.tile.panel_bytes() + byte % self.tile.row_bytes()) / 16
    }
    /// Offset of the `n`-th block of 64 rows of the matmul.
    fn block(&self, n: usize) -> usize {
        if self.transposed { n * self.tile.panel_bytes() / 16 } else { n * 64 * self.tile.row_bytes() / 16 }
    }
}

impl<'c> Gen<'c, '_> {
    pub fn wgmma(&mut self, data: &InstData, transposed: [bool; 2]) -> Res<Vec<Reg<'c>>> {
        let (left, [b, sb, acc]) = match data.args[..] {
            [a, sa, b, sb, acc] => (Left::Tile(self.operand_of(a, sa, transposed[0])?), [b, sb, acc]),
            [a, b, sb, acc] => (Left::Registers(self.words_of_left(a)?), [b, sb, acc]),
            _ => return Err(mistyped("a matmul")),
        };
        let [m, n] = self.k.ty(data.results[0]).shape() else { return Err(mistyped("a matmul")) };
        let (m, n) = (*m, *n);
        if self.threads.bits < WARPGROUP || n > 256 || m % (64 << (self.threads.bits - WARPGROUP)) != 0 {
            return Err(Fail::Unsupported(format!("a matmul of {m}x{n} by {} warps", 1 << (self.threads.bits - 5))));
        }
        let left = match left {
            Left::Tile(a) => Left::Tile(self.of_warpgroup(a, m)?),
            registers => registers,
        };
        let b = self.operand_of(b, sb, !transposed[1])?;
        let (depth, columns) =
            if transposed[1] { (b.tile.columns, b.tile.rows) } else { (b.tile.rows, b.tile.columns) };
        let steps = depth * b.tile.elem.bytes() / STEP;
        let mut values = self.plain(acc)?;
        let fresh = values.iter().all(is_zero);
        self.e.invoke("llvm.nvvm.wgmma.fence.sync.aligned", &[], &[])?;
        let mut read = vec![];
        for (block, sums) in values.chunks_mut(n / 2).enumerate() {
            let sums = &mut sums[..columns / 2];
            for step in 0..steps {
                let at = |o: &Operand<'c>, more: usize| {
                    self.e.add(o.base, self.e.int_of(self.e.i64(), (o.step(step) + more) as i64))
                };
                let a: Vec<Val<'c>> = match &left {
                    Left::Tile(a) => vec![at(a, a.block(block))?.into()],
                    Left::Registers(all) => {
                        let first = (block * steps + step) * REGISTERS;
                        all.get(first..first + REGISTERS).ok_or_else(|| mistyped("a left operand"))?.to_vec()
                    }
                };
                let db = at(&b, 0)?;
                let keep = !fresh || step > 0;
                let next = self.multiply(sums, (&a, transposed[0]), (db, &b), keep, columns)?;
                sums.copy_from_slice(&next);
            }
        }
        if let Left::Registers(all) = left {
            read.extend(all);
            self.read.insert(data.results[0], read);
        }
        Ok(values.into_iter().map(Reg::Plain).collect())
    }
    /// A left tile's rows of this thread's warpgroup, where several share the matmul.
    fn of_warpgroup(&mut self, a: Operand<'c>, m: usize) -> Res<Operand<'c>> {
        let groups = self.threads.bits - WARPGROUP;
        if groups == 0 {
            return Ok(a);
        }
        let weights = (0..self.threads.bits).map(|bit| if bit < WARPGROUP { 0 } else { 1 << (bit - WARPGROUP) });
        let group = self.threads.sum(&self.e, &weights.collect::<Vec<_>>())?.value(&self.e, &mut self.memo)?;
        // The same in all lanes of a warp, which only the shuffle tells the assembler.
        let shuffled = [self.e.int(-1), group, self.e.int(0), self.e.int(31)].map(Val::from);
        let group = int(self.e.call("llvm.nvvm.shfl.sync.idx.i32", &[], &shuffled)?)?;
        let rows = a.block((m / 64) >> groups);
        let more = self.e.zext(self.e.mul(group, self.e.int(rows as i64))?, self.e.i64())?;
        Ok(Operand { base: self.e.add(a.base, more)?, ..a })
    }
    /// A left operand's registers of 32 bits.
    fn words_of_left(&mut self, v: Value) -> Res<Vec<Val<'c>>> {
        let values = self.plain(v)?;
        match self.elem(v)? {
            Elem::F32 => values.iter().map(|v| self.e.bitcast(*v, self.e.i32())).collect(),
            _ => self.pairs(v, &values),
        }
    }
    /// Matrix descriptor of a stage. `transposed`: the tile is M- or N-major.
    fn operand_of(&mut self, tile: Value, stage: Value, transposed: bool) -> Res<Operand<'c>> {
        let t = Tile::of(self.k, tile)?;
        if t.swizzle != Swizzle::B128 || operand_type(t.elem).is_none() {
            return Err(Fail::Unsupported(format!("a matmul of {} tiles swizzled {}", t.elem, t.swizzle)));
        }
        let start = self.tile_byte(self.places.at(tile)?, None)?;
        let bytes = t.stage_bytes();
        let e = &self.e;
        let address = e.b.build_ptr_to_int(start, e.i64(), "")?;
        // Bits 62-63: swizzle of 128 bytes; 32-45: from eight rows to the next; 16-29: from panel to panel.
        let leading = if transposed { t.panel_bytes() >> 4 } else { 1 };
        let fixed = 1u64 << 62 | (1024 >> 4) << 32 | (leading as u64) << 16;
        // In a cluster the upper bits of the address hold the block's rank, where the descriptor has other fields.
        let address = e.and(address, e.int_of(e.i64(), 0x3ffff))?;
        let base = e.or(e.lshr(address, e.int_of(e.i64(), 4))?, e.i64().const_int(fixed, false))?;
        let at = self.staged(stage, bytes >> 4)?;
        let base = self.e.add(base, self.e.zext(at, self.e.i64())?)?;
        Ok(Operand { base, tile: t, transposed })
    }
    /// One instruction: 64 rows, all columns, 32 bytes of K. The left operand is a descriptor or registers.
    fn multiply(
        &mut self,
        sums: &[Val<'c>],
        (left, left_transposed): (&[Val<'c>], bool),
        (right, b): (IntValue<'c>, &Operand),
        keep: bool,
        n: usize,
    ) -> Res<Vec<Val<'c>>> {
        let count = sums.len();
        let list = |from: usize, count: usize| {
            let all: Vec<String> = (from..from + count).map(|i| format!("${i}")).collect();
            all.join(", ")
        };
        let (ty, k) = operand_type(b.tile.elem).ok_or_else(|| mistyped("a matmul"))?;
        let in_registers = left.len() > 1;
        // 32- and 8-bit operands must be K-major, and the instruction has no flags for other ones; nor has a left
        // operand in registers.
        let transposes = match b.tile.elem.bytes() {
            2 if in_registers => format!(", {}", u8::from(b.transposed)),
            2 => format!(", {}, {}", u8::from(left_transposed), u8::from(b.transposed)),
            _ => String::new(),
        };
        let x = 2 * count;
        let a = if in_registers { format!("{{{}}}", list(x, left.len())) } else { format!("${x}") };
        let (y, p) = (x + left.len(), x + left.len() + 1);
        // Floats may be negated, which is not done here; integers not.
        let (sum, signs) = if b.tile.elem.is_int() { ("s32", "") } else { ("f32", ", 1, 1") };
        let name = format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sum}.{ty}.{ty}");
        let text = format!(
            "{{ .reg .pred p; setp.ne.b32 p, ${p}, 0; {name} {{{}}}, {a}, ${y}, p{signs}{transposes}; }}",
            list(0, count),
        );
        let mut args: Vec<Val<'c>> = match keep {
            true => sums.to_vec(),
            // The previous contents are not read.
            false if b.tile.elem.is_int() => vec![self.e.i32().get_poison().into(); count],
            false => vec![self.e.f32().get_poison().into(); count],
        };
        args.extend(left);
        args.extend::<[Val<'c>; 2]>([right.into(), self.e.int(i64::from(keep)).into()]);
        let constraints = if in_registers { "r,".repeat(left.len()) + "l,r" } else { "l,l,r".into() };
        self.tied(&text, count, &constraints, &args)
    }
    /// Inline assembly over accumulators that stay in their registers.
    fn tied(&self, text: &str, count: usize, more: &str, args: &[Val<'c>]) -> Res<Vec<Val<'c>>> {
        let integers = args.first().is_some_and(|v| v.is_int_value());
        let (register, sum): (_, BasicTypeEnum) =
            if integers { ("=r", self.e.i32().into()) } else { ("=f", self.e.f32().into()) };
        let mut constraints: Vec<String> = vec![register.into(); count];
        constraints.extend((0..count).map(|i| i.to_string()));
        constraints.extend((!more.is_empty()).then(|| more.to_string()));
        let ty = self.e.cx.struct_type(&vec![sum; count], false);
        let v = self.e.asm(text, &constraints.join(","), Some(ty.into()), args, true, true)?;
        self.e.fields(v.ok_or_else(|| mistyped("a matmul"))?, count)
    }
    /// Columns of a token that its matmuls compute.
    fn multiplied(&self, token: Value) -> usize {
        let (ty, mut most) = (self.k.ty(token), 0);
        self.k.walk(&mut |_, d| {
            if let Op::Wgmma { transpose_b, .. } = d.op
                && self.k.ty(d.results[0]) == ty
            {
                let right = d.args[d.args.len() - 3];
                most = most.max(self.k.ty(right).shape()[usize::from(!transpose_b)]);
            }
        });
        most
    }
    pub fn wgmma_commit(&mut self) -> Res<()> {
        self.e.invoke("llvm.nvvm.wgmma.commit_group.sync.aligned", &[], &[]).map(|_| ())
    }
    /// With a token, its accumulators go through the wait, so that no use of them comes before it; and left operands in
    /// registers stay there until it.
    pub fn wgmma_wait(&mut self, data: &InstData, pending: u8) -> Res<()> {
        let ([token], [result]) = (&data.args[..], &data.results[..]) else {
            if data.args.is_empty() {
                let n = self.e.int_of(self.e.i64(), pending.into());
                return self.e.invoke("llvm.nvvm.wgmma.wait_group.sync.aligned", &[], &[n.into()]).map(|_| ());
            }
            let mut read = vec![];
            for left in &data.args {
                read.extend(self.words_of_left(*left)?);
            }
            let (text, constraints) =
                (format!("wgmma.wait_group.sync.aligned {pending};"), vec!["r"; read.len()].join(","));
            return self.e.asm(&text, &constraints, None, &read, true, true).map(|_| ());
        };
        let mut values = self.plain(*token)?;
        let text = format!("wgmma.wait_group.sync.aligned {pending};");
        let (columns, all) = (self.multiplied(*token), self.k.ty(*token).shape()[1]);
        let is_one = |r: &usize| r % (all / 2) < columns / 2;
        let multiplied: Vec<usize> = (0..values.len()).filter(is_one).collect();
        let mut waited: Vec<Val<'c>> = multiplied.iter().map(|r| values[*r]).collect();
        let count = waited.len();
        let read = self.read.remove(token).unwrap_or_default();
        let more = vec!["r"; read.len()].join(",");
        waited.extend(read);
        let waited = self.tied(&text, count, &more, &waited)?;
        multiplied.into_iter().zip(waited).for_each(|(r, v)| values[r] = v);
        let elem = self.elem(*result)?;
        self.set(*result, values.into_iter().map(|v| Reg::of(v, elem)).collect());
        Ok(())
    }
}
