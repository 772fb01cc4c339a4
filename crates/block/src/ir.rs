//! A kernel: flat arenas of values and instructions, regions by id. Entities are u32 newtypes; `Display` is the text syntax.
use crate::{Layout, Op, Type};
use serde::{Deserialize, Serialize};
use std::fmt;

/// `v3`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Value(pub u32);
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Inst(pub u32);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ValueData {
    pub ty: Type,
    /// How the elements lie in the registers of the threads; set by the layout pass, absent in upper-level programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InstData {
    pub op: Op,
    pub args: Vec<Value>,
    pub results: Vec<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<Region>,
}

/// A straight list of instructions; nested ones end in `yield`, the kernel's own has none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Region {
    pub params: Vec<Value>,
    pub insts: Vec<Inst>,
}

/// A parameter of a kernel: a global pointer, a descriptor, or a scalar.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Param {
    pub name: String,
    pub value: Value,
    /// Alignment of the address in bytes (pointers; a power of two).
    pub align: usize,
    /// Only read.
    pub readonly: bool,
}

/// A block program. Its launch is static: shapes are constants of the program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Kernel {
    pub name: String,
    pub params: Vec<Param>,
    /// Instances along each axis; 0 anywhere means nothing to do.
    pub grid: [usize; 3],
    /// Warps of an instance on a GPU (power of two without roles).
    pub warps: usize,
    /// Blocks in a cluster along axis 0.
    pub cluster: usize,
    pub values: Vec<ValueData>,
    pub insts: Vec<InstData>,
    pub body: Region,
}

impl Kernel {
    pub fn value(&self, v: Value) -> &ValueData {
        &self.values[v.0 as usize]
    }
    pub fn ty(&self, v: Value) -> &Type {
        &self.values[v.0 as usize].ty
    }
    pub fn inst(&self, i: Inst) -> &InstData {
        &self.insts[i.0 as usize]
    }
    pub fn inst_mut(&mut self, i: Inst) -> &mut InstData {
        &mut self.insts[i.0 as usize]
    }
    pub fn new_value(&mut self, ty: Type) -> Value {
        self.values.push(ValueData { ty, layout: None });
        Value(self.values.len() as u32 - 1)
    }
    pub fn new_inst(&mut self, data: InstData) -> Inst {
        self.insts.push(data);
        Inst(self.insts.len() as u32 - 1)
    }
    /// Number of instances.
    pub fn instances(&self) -> usize {
        self.grid.iter().product()
    }
    /// Visits every instruction in program order, regions inside their op after it.
    pub fn walk(&self, f: &mut impl FnMut(Inst, &InstData)) {
        self.walk_region(&self.body, f);
    }
    pub fn walk_region(&self, r: &Region, f: &mut impl FnMut(Inst, &InstData)) {
        for &i in &r.insts {
            let data = self.inst(i);
            f(i, data);
            for inner in &data.regions {
                self.walk_region(inner, f);
            }
        }
    }
}
