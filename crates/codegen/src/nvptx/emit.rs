//! LLVM's builder with short names, and calls by name that are checked.
use inkwell::attributes::AttributeLoc;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicType, BasicTypeEnum, FloatType, IntType, PointerType};
use inkwell::values::{BasicMetadataValueEnum, BasicValue, BasicValueEnum, FloatValue, IntValue, PointerValue};
use inkwell::{AddressSpace, FloatPredicate, IntPredicate};
use kiln_block::Elem;

pub(super) type Val<'c> = BasicValueEnum<'c>;

/// Why there is no code; the caller adds the kernel's name.
#[derive(Debug)]
pub(super) enum Fail {
    Unsupported(String),
    /// An invariant that a pass or the generator broke.
    Defect(String),
    Llvm(String),
}
impl From<BuilderError> for Fail {
    fn from(e: BuilderError) -> Fail {
        Fail::Llvm(e.to_string())
    }
}
pub(super) type Res<T> = Result<T, Fail>;

/// A wrong kind of LLVM value: a program that the verifier should have rejected.
pub(super) fn mistyped(what: &str) -> Fail {
    Fail::Unsupported(format!("{what} of this type"))
}

pub(super) const GLOBAL: u16 = 1;
pub(super) const SHARED: u16 = 3;

pub(super) struct Emit<'c> {
    pub cx: &'c Context,
    pub module: Module<'c>,
    pub b: Builder<'c>,
    /// For this machine's CPU, to test formulas on: the GPU's own instructions are replaced.
    pub host: bool,
    /// All results are rounded to half types: functions need an accuracy of 2^-20, not of the last bit.
    pub rounded: bool,
    /// A product and a sum do not contract to an FMA.
    pub ieee: bool,
    /// The GPU converts to 8-bit floats: from `sm_89` on.
    pub f8: bool,
}

macro_rules! binary {
    ($($name:ident: $ty:ident = $build:ident;)*) => {
        $(pub fn $name(&self, a: $ty<'c>, b: $ty<'c>) -> Res<$ty<'c>> { Ok(self.b.$build(a, b, "")?) })*
    };
}

impl<'c> Emit<'c> {
    pub fn i1(&self) -> IntType<'c> {
        self.cx.bool_type()
    }
    pub fn i8(&self) -> IntType<'c> {
        self.cx.i8_type()
    }
    pub fn i32(&self) -> IntType<'c> {
        self.cx.i32_type()
    }
    pub fn i64(&self) -> IntType<'c> {
        self.cx.i64_type()
    }
    pub fn f32(&self) -> FloatType<'c> {
        self.cx.f32_type()
    }
    pub fn ptr(&self, space: u16) -> PointerType<'c> {
        self.cx.ptr_type(AddressSpace::from(space))
    }
    /// Type of an element in a register; `Bool` is one bit there.
    pub fn elem(&self, e: Elem) -> BasicTypeEnum<'c> {
        match (e, e.bytes()) {
            (Elem::F64, _) => self.cx.f64_type().into(),
            (Elem::F32, _) => self.f32().into(),
            (Elem::F16, _) => self.cx.f16_type().into(),
            (Elem::Bf16, _) => self.cx.bf16_type().into(),
            (Elem::Bool, _) => self.i1().into(),
            // Integers, and 8-bit floats.
            (_, 8) => self.i64().into(),
            (_, 4) => self.i32().into(),
            (_, 2) => self.cx.i16_type().into(),
            _ => self.i8().into(),
        }
    }
    pub fn int(&self, v: i64) -> IntValue<'c> {
        self.i32().const_int(v as u64, true)
    }
    pub fn int_of(&self, ty: IntType<'c>, v: i64) -> IntValue<'c> {
        ty.const_int(v as u64, true)
    }
    pub fn bool(&self, v: bool) -> IntValue<'c> {
        self.i1().const_int(u64::from(v), false)
    }
    binary! {
        add: IntValue = build_int_add;
        sub: IntValue = build_int_sub;
        mul: IntValue = build_int_mul;
        sdiv: IntValue = build_int_signed_div;
        srem: IntValue = build_int_signed_rem;
        udiv: IntValue = build_int_unsigned_div;
        urem: IntValue = build_int_unsigned_rem;
        xor: IntValue = build_xor;
        shl: IntValue = build_left_shift;
        fadd: FloatValue = build_float_add;
        fsub: FloatValue = build_float_sub;
        fmul: FloatValue = build_float_mul;
        fdiv: FloatValue = build_float_div;
    }
    pub fn and(&self, a: IntValue<'c>, b: IntValue<'c>) -> Res<IntValue<'c>> {
        match (known_bit(a), known_bit(b)) {
            (Some(true), _) | (_, Some(false)) => Ok(b),
            (_, Some(true)) | (Some(false), _) => Ok(a),
            _ => Ok(self.b.build_and(a, b, "")?),
        }
    }
    pub fn or(&self, a: IntValue<'c>, b: IntValue<'c>) -> Res<IntValue<'c>> {
        match (known_bit(a), known_bit(b)) {
            (Some(false), _) | (_, Some(true)) => Ok(b),
            (_, Some(false)) | (Some(true), _) => Ok(a),
            _ => Ok(self.b.build_or(a, b, "")?),
        }
    }
    pub fn lshr(&self, a: IntValue<'c>, b: IntValue<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_right_shift(a, b, false, "")?)
    }
    pub fn ashr(&self, a: IntValue<'c>, b: IntValue<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_right_shift(a, b, true, "")?)
    }
    /// 2^x by the GPU's own instruction, within 2 ulp.
    pub fn ex2(&self, x: FloatValue<'c>) -> Res<FloatValue<'c>> {
        if self.host {
            return self.call_float("llvm.exp2", &[x]);
        }
        float(self.call("llvm.nvvm.ex2.approx.ftz", &[self.f32().into()], &[x.into()])?)
    }
    /// 1/x by the GPU's own instruction, within 1 ulp; 0 where the result is subnormal.
    pub fn rcp(&self, x: FloatValue<'c>) -> Res<FloatValue<'c>> {
        if self.host {
            return self.fdiv(x.get_type().const_float(1.0), x);
        }
        float(self.call("llvm.nvvm.rcp.approx.ftz.f", &[], &[x.into()])?)
    }
    /// The hyperbolic tangent by the GPU's own instruction, within 2^-10.
    pub fn tanh(&self, x: FloatValue<'c>) -> Res<FloatValue<'c>> {
        /// LLVM's flag for functions by approximate instructions.
        const APPROXIMATE: u32 = 1 << 6;
        self.flagged(self.call_float("llvm.tanh", &[x])?, APPROXIMATE)
    }
    /// a·b + s, clamped to [0, 1]; 0 for NaN.
    pub fn fma_unit(&self, a: FloatValue<'c>, b: FloatValue<'c>, s: FloatValue<'c>) -> Res<FloatValue<'c>> {
        if self.host {
            let x = self.call_float("llvm.fma", &[a, b, s])?;
            let x = self.call_float("llvm.maxnum", &[x, a.get_type().const_float(0.0)])?;
            return self.call_float("llvm.minnum", &[x, a.get_type().const_float(1.0)]);
        }
        let args = [a.into(), b.into(), s.into()];
        let v = self.asm("fma.rn.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", Some(self.f32().into()), &args, false, false)?;
        float(v.ok_or_else(|| mistyped("a sum"))?)
    }
    /// Lets a product and a sum contract to an FMA.
    pub fn contracted(&self, v: FloatValue<'c>) -> Res<FloatValue<'c>> {
        /// LLVM's flag for contraction.
        const CONTRACT: u32 = 1 << 5;
        if self.ieee { Ok(v) } else { self.flagged(v, CONTRACT) }
    }
    fn flagged(&self, v: FloatValue<'c>, flag: u32) -> Res<FloatValue<'c>> {
        if let Some(i) = v.as_instruction() {
            let flags = inkwell::values::FastMathFlags::from_bits_truncate(flag);
            i.set_fast_math_flags(flags).map_err(|e| Fail::Llvm(e.to_string()))?;
        }
        Ok(v)
    }
    pub fn not(&self, a: IntValue<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_not(a, "")?)
    }
    pub fn fneg(&self, a: FloatValue<'c>) -> Res<FloatValue<'c>> {
        Ok(self.b.build_float_neg(a, "")?)
    }
    pub fn icmp(&self, p: IntPredicate, a: IntValue<'c>, b: IntValue<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_int_compare(p, a, b, "")?)
    }
    pub fn fcmp(&self, p: FloatPredicate, a: FloatValue<'c>, b: FloatValue<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_float_compare(p, a, b, "")?)
    }
    pub fn select(&self, c: IntValue<'c>, a: Val<'c>, b: Val<'c>) -> Res<Val<'c>> {
        if a == b {
            return Ok(a);
        }
        Ok(self.b.build_select(c, a, b, "")?)
    }
    pub fn fselect(&self, c: IntValue<'c>, a: FloatValue<'c>, b: FloatValue<'c>) -> Res<FloatValue<'c>> {
        float(self.select(c, a.into(), b.into())?)
    }
    pub fn iselect(&self, c: IntValue<'c>, a: IntValue<'c>, b: IntValue<'c>) -> Res<IntValue<'c>> {
        int(self.select(c, a.into(), b.into())?)
    }
    pub fn sext(&self, a: IntValue<'c>, ty: IntType<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_int_s_extend_or_bit_cast(a, ty, "")?)
    }
    pub fn zext(&self, a: IntValue<'c>, ty: IntType<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_int_z_extend_or_bit_cast(a, ty, "")?)
    }
    pub fn trunc(&self, a: IntValue<'c>, ty: IntType<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_int_truncate_or_bit_cast(a, ty, "")?)
    }
    pub fn bitcast(&self, a: Val<'c>, ty: impl BasicType<'c>) -> Res<Val<'c>> {
        let ty = ty.as_basic_type_enum();
        if a.get_type() == ty {
            return Ok(a);
        }
        Ok(self.b.build_bit_cast(a, ty, "")?)
    }
    pub fn bits_of_float(&self, a: FloatValue<'c>, ty: IntType<'c>) -> Res<IntValue<'c>> {
        int(self.bitcast(a.into(), ty)?)
    }
    pub fn float_of_bits(&self, a: IntValue<'c>, ty: FloatType<'c>) -> Res<FloatValue<'c>> {
        float(self.bitcast(a.into(), ty)?)
    }
    pub fn element(&self, v: Val<'c>, i: usize) -> Res<Val<'c>> {
        Ok(self.b.build_extract_element(v.into_vector_value(), self.int(i as i64), "")?)
    }
    /// A pointer `offset` elements of `ty` further.
    pub fn gep(&self, ty: BasicTypeEnum<'c>, ptr: PointerValue<'c>, offset: IntValue<'c>) -> Res<PointerValue<'c>> {
        if offset.is_const() && offset.is_null() {
            return Ok(ptr);
        }
        // SAFETY: this only builds an address; the program's masks keep accesses in their buffers.
        Ok(unsafe { self.b.build_in_bounds_gep(ty, ptr, &[offset], "") }?)
    }
    /// An intrinsic that gives a value. `over`: the types it is overloaded on.
    pub fn call(&self, name: &str, over: &[BasicTypeEnum<'c>], args: &[Val<'c>]) -> Res<Val<'c>> {
        self.invoke(name, over, args)?.ok_or_else(|| Fail::Llvm(format!("{name} gives no value")))
    }
    pub fn call_float(&self, name: &str, args: &[FloatValue<'c>]) -> Res<FloatValue<'c>> {
        let over = [args[0].get_type().into()];
        let args: Vec<Val<'c>> = args.iter().map(|a| (*a).into()).collect();
        float(self.call(name, &over, &args)?)
    }
    /// An intrinsic, checked to exist: LLVM takes a misspelt name for an external function.
    pub fn invoke(&self, name: &str, over: &[BasicTypeEnum<'c>], args: &[Val<'c>]) -> Res<Option<Val<'c>>> {
        let unknown = || Fail::Llvm(format!("there is no intrinsic {name}"));
        let intrinsic = Intrinsic::find(name).ok_or_else(unknown)?;
        let over = if intrinsic.is_overloaded() { over } else { &[] };
        let f = intrinsic.get_declaration(&self.module, over).ok_or_else(unknown)?;
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|a| (*a).into()).collect();
        Ok(self.b.build_call(f, &args, "")?.try_as_basic_value().basic())
    }
    /// Inline assembly. `effects`: must be kept, and in order; `together`: convergent, all lanes of the warp must reach
    /// it together.
    pub fn asm(
        &self,
        text: &str,
        constraints: &str,
        result: Option<BasicTypeEnum<'c>>,
        args: &[Val<'c>],
        effects: bool,
        together: bool,
    ) -> Res<Option<Val<'c>>> {
        let types: Vec<_> = args.iter().map(|a| a.get_type().into()).collect();
        let ty = match result {
            Some(r) => r.fn_type(&types, false),
            None => self.cx.void_type().fn_type(&types, false),
        };
        let f = self.cx.create_inline_asm(ty, text.into(), constraints.into(), effects, false, None, false);
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|a| (*a).into()).collect();
        let call = self.b.build_indirect_call(ty, f, &args, "")?;
        for name in ["nounwind"].into_iter().chain(together.then_some("convergent")) {
            let kind = inkwell::attributes::Attribute::get_named_enum_kind_id(name);
            call.add_attribute(AttributeLoc::Function, self.cx.create_enum_attribute(kind, 0));
        }
        Ok(call.try_as_basic_value().basic())
    }
    /// The fields of an assembly's result: a struct, or the value itself.
    pub fn fields(&self, v: Val<'c>, count: usize) -> Res<Vec<Val<'c>>> {
        match v {
            Val::StructValue(s) => (0..count as u32).map(|i| Ok(self.b.build_extract_value(s, i, "")?)).collect(),
            one => Ok(vec![one]),
        }
    }
    pub fn load(&self, ty: BasicTypeEnum<'c>, ptr: PointerValue<'c>, align: usize, constant: bool) -> Res<Val<'c>> {
        let v = self.b.build_load(ty, ptr, "")?;
        if let Some(i) = v.as_instruction_value() {
            i.set_alignment(align as u32).map_err(|e| Fail::Llvm(e.to_string()))?;
            if constant {
                let kind = self.cx.get_kind_id("invariant.load");
                i.set_metadata(self.cx.metadata_node(&[]), kind).map_err(|e| Fail::Llvm(e.to_string()))?;
            }
        }
        Ok(v)
    }
    pub fn store(&self, v: Val<'c>, ptr: PointerValue<'c>, align: usize) -> Res<()> {
        let i = self.b.build_store(ptr, v)?;
        i.set_alignment(align as u32).map_err(|e| Fail::Llvm(e.to_string()))
    }
    /// A vector of these values; a single one stays as it is.
    pub fn vector(&self, parts: &[Val<'c>]) -> Res<Val<'c>> {
        let [first, ..] = parts else { return Err(mistyped("an empty vector")) };
        if parts.len() == 1 {
            return Ok(*first);
        }
        let n = parts.len() as u32;
        let ty = match first {
            Val::IntValue(v) => v.get_type().vec_type(n),
            Val::FloatValue(v) => v.get_type().vec_type(n),
            _ => return Err(mistyped("a vector")),
        };
        let mut all = ty.get_poison();
        for (i, p) in parts.iter().enumerate() {
            all = self.b.build_insert_element(all, *p, self.int(i as i64), "")?;
        }
        Ok(all.into())
    }
    pub fn barrier(&self) -> Res<()> {
        self.invoke("llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[self.int(0).into()])?;
        Ok(())
    }
}

/// A condition that is constant.
fn known_bit(v: IntValue) -> Option<bool> {
    (v.get_type().get_bit_width() == 1).then(|| v.get_zero_extended_constant())?.map(|v| v != 0)
}

pub(super) fn int(v: Val) -> Res<IntValue> {
    match v {
        Val::IntValue(i) => Ok(i),
        other => Err(mistyped(&format!("an integer op on {}", other.get_type()))),
    }
}
pub(super) fn float(v: Val) -> Res<FloatValue> {
    match v {
        Val::FloatValue(f) => Ok(f),
        other => Err(mistyped(&format!("a float op on {}", other.get_type()))),
    }
}

/// Whether this is a constant whose bits are all zero.
pub(super) fn is_zero(v: &Val) -> bool {
    match v {
        Val::FloatValue(f) => f.is_const() && f.is_null(),
        Val::IntValue(i) => i.is_const() && i.is_null(),
        _ => false,
    }
}
