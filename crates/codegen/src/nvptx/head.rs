//! The head of a kernel: its name, parameters and attributes, and the wait for earlier kernels.
//!
//! Programmatic dependent launch: a kernel that is launched before the kernel ahead of it has ended begins by waiting
//! for that end. Such a kernel does without `ld.global.nc`, which the assembler would move ahead of the wait. A kernel
//! does not trigger the next one before its own end: the next one's blocks would crowd on the multiprocessors that are
//! free first.
use super::emit::{Emit, Fail, GLOBAL, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::{Index, Pointer, Reg, memory_type};
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::types::BasicTypeEnum;
use inkwell::values::FunctionValue;
use inkwell::{AddressSpace, IntPredicate};
use kiln_block::passes::layout::anchors::roles;
use kiln_block::passes::persistent_rows;
use kiln_block::{BlockProgram, CachePolicy, Elem, Type};
use kiln_machine::isa;

/// LLVM's number of the calling convention of PTX entry points.
const PTX_KERNEL: u32 = 71;
/// A tensor map as the driver encodes it.
const TENSOR_MAP_BYTES: u32 = 128;

/// A valid PTX name: it starts with a letter (a module's own variables start with `_`), and is not a predefined
/// constant.
pub(super) fn entry_name(k: &BlockProgram) -> String {
    let plain: String = k.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let fits = plain.starts_with(|c: char| c.is_ascii_alphabetic()) && plain != "WARP_SZ";
    if fits { plain } else { format!("k{plain}") }
}

pub(super) fn declare<'c>(e: &Emit<'c>, k: &BlockProgram, blocks: usize) -> Res<FunctionValue<'c>> {
    let mut types = vec![];
    for p in &k.params {
        types.push(match k.ty(p.value) {
            Type::Ptr { shape, .. } if shape.is_empty() => e.ptr(GLOBAL).into(),
            Type::Block { elem, shape } if shape.is_empty() => memory_type(e, *elem).into(),
            Type::Desc { .. } if p.array.is_some() || p.launch_array.is_some() => e.ptr(0).into(),
            other => return Err(Fail::Unsupported(format!("a parameter of type {other}"))),
        });
    }
    let f = e.module.add_function(&entry_name(k), e.cx.void_type().fn_type(&types, false), None);
    f.set_call_conventions(PTX_KERNEL);
    let enumerated = |name: &str, v: u64| e.cx.create_enum_attribute(Attribute::get_named_enum_kind_id(name), v);
    let text = |key: &str, v: String| e.cx.create_string_attribute(key, &v);
    f.add_attribute(AttributeLoc::Function, enumerated("nounwind", 0));
    f.add_attribute(AttributeLoc::Function, enumerated("convergent", 0));
    f.add_attribute(AttributeLoc::Function, text("nvvm.reqntid", (k.warps / blocks * isa::WARP).to_string()));
    if let Some(n) = k.registers {
        f.add_attribute(AttributeLoc::Function, text("nvvm.maxnreg", n.to_string()));
    }
    if (roles(k).is_some() || persistent_rows::is_persistent(k)) && k.registers.is_none() {
        f.add_attribute(AttributeLoc::Function, text("nvvm.minctasm", "1".into()));
    }
    let cluster = k.cluster.max(blocks);
    if cluster > 1 {
        f.add_attribute(AttributeLoc::Function, text("nvvm.cluster_dim", cluster.to_string()));
    }
    for (i, p) in k.params.iter().enumerate().filter(|(_, p)| matches!(k.ty(p.value), Type::Ptr { .. })) {
        let at = AttributeLoc::Param(i as u32);
        f.add_attribute(at, enumerated("align", p.align.max(1) as u64));
        f.add_attribute(at, enumerated("nonnull", 0));
        if p.readonly {
            f.add_attribute(at, enumerated("readonly", 0));
        }
        if p.readonly || p.facts.noalias {
            f.add_attribute(at, enumerated("noalias", 0));
        }
    }
    for (i, _) in k.params.iter().enumerate().filter(|(_, p)| matches!(k.ty(p.value), Type::Desc { .. })) {
        let at = AttributeLoc::Param(i as u32);
        let map = e.i8().array_type(TENSOR_MAP_BYTES).into();
        f.add_attribute(at, e.cx.create_type_attribute(Attribute::get_named_enum_kind_id("byval"), map));
        f.add_attribute(at, enumerated("align", 64));
        f.add_attribute(at, text("nvvm.grid_constant", String::new()));
    }
    Ok(f)
}

impl<'c> Gen<'c, '_> {
    pub fn params(&mut self) -> Res<()> {
        let args = if self.k.dependent { self.after_kernels_before()? } else { self.function.get_params() };
        for (i, p) in self.k.params.iter().enumerate() {
            let arg = *args.get(i).ok_or_else(|| mistyped("a parameter"))?;
            let reg = match (self.k.ty(p.value), arg) {
                (Type::Desc { .. }, Val::PointerValue(map)) => {
                    self.maps.insert(p.value, map);
                    continue;
                }
                (Type::Ptr { elem, .. }, Val::PointerValue(base)) => {
                    let align = p.align.max(1) as u64;
                    Reg::Ptr(Pointer {
                        base,
                        elem: *elem,
                        align,
                        off: 0,
                        readonly: p.readonly,
                        cache: CachePolicy::Normal,
                    })
                }
                (Type::Block { elem: Elem::Bool, .. }, arg) => {
                    let zero = self.e.int_of(self.e.i8(), 0);
                    Reg::Plain(self.e.icmp(IntPredicate::NE, int(arg)?, zero)?.into())
                }
                (Type::Block { elem: Elem::I32 | Elem::I64, .. }, arg) => {
                    Reg::Int(Index::opaque(int(arg)?).known(&p.facts))
                }
                (_, arg) => self.register(p.value, arg),
            };
            self.set(p.value, vec![reg]);
        }
        Ok(())
    }
    /// Waits for earlier kernels. Addresses pass through the wait, so that LLVM moves no access ahead of it.
    fn after_kernels_before(&mut self) -> Res<Vec<Val<'c>>> {
        let mut args = self.function.get_params();
        let global = AddressSpace::from(GLOBAL);
        let is_address = |a: &Val<'c>| matches!(a, Val::PointerValue(p) if p.get_type().get_address_space() == global);
        let addresses: Vec<Val<'c>> = args.iter().copied().filter(is_address).collect();
        let n = addresses.len();
        let constraints: Vec<String> = vec!["=l".to_string(); n]
            .into_iter()
            .chain((0..n).map(|i| i.to_string()))
            .chain(["~{memory}".into()])
            .collect();
        let one = self.e.ptr(GLOBAL);
        let ty: Option<BasicTypeEnum> = match n {
            0 => None,
            1 => Some(one.into()),
            _ => Some(self.e.cx.struct_type(&vec![one.into(); n], false).into()),
        };
        let waited = self.e.asm("griddepcontrol.wait;", &constraints.join(","), ty, &addresses, true, false)?;
        let fields = waited.map_or(Ok(vec![]), |v| self.e.fields(v, n))?;
        for (arg, after) in args.iter_mut().filter(|a| is_address(a)).zip(fields) {
            *arg = after;
        }
        Ok(args)
    }
}
