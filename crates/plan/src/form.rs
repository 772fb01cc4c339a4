//! Forms: by which template a matmul, a convolution or attention is computed, without sizes of tiles.
//!
//! A form prints as the term it stands for: `gemm{wgmma, split}(layout(a), b)` multiplies by warpgroups in slices of K
//! after a launch that copies the left operand; `permute(gemm{wgmma}(b, a))` has its operands swapped;
//! `gemm{mma}(w, im2col(x))` is a convolution by patches, `gemm{wgmma}(w, windows(x))` an implicit GEMM;
//! `attention{wgmma}(q, k, v)`. The text parses back to the same value. Rules of the e-graph add forms to the class of
//! the value that they compute, the plan states one for each kernel, and the schedule says in which tiles.
//! Never: a size, a number of stages or of slices. Those are the cheapest ones of the form.
use crate::matmul_schedule::MatmulSchedule;
use crate::{Engine, KernelKind, Schedule};
use kiln_graph::ops::Class;
use kiln_graph::{Graph, ValueId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::{fmt, str::FromStr};

/// What computes the sums of a GEMM.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum GemmTemplate {
    /// Tiles of the result, by this engine.
    Tiles(Engine),
    /// Sums along rows of the operands, as reductions: for few rows or columns, and for integers.
    Rows,
    /// A library.
    Library,
}

/// The array that an operand of a GEMM is read from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Storage {
    /// As it is stored.
    #[default]
    InPlace,
    /// A launch copies it first: to aligned rows, with K contiguous where the engine asks for that.
    Copied,
}

/// What a convolution multiplies its weight with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Patches {
    /// A matrix of patches, each element read from the input where it is used.
    Im2col,
    /// Windows of the input, which tensor maps read: an implicit GEMM.
    Windows,
}

/// The form of a matmul or a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GemmForm {
    /// What multiplies.
    pub template: GemmTemplate,
    /// Slices of K are summed by another launch.
    pub split: bool,
    /// Two matmuls that share their left operand, or the halves of a matmul, are one launch.
    pub dual: bool,
    /// The transpose is computed, from the operands in the other order.
    pub swap: bool,
    /// Where the left and the right operand are read.
    pub operands: [Storage; 2],
    /// Of a convolution: how its input is read.
    pub patches: Option<Patches>,
}

/// The form of attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AttentionForm {
    /// What multiplies.
    pub engine: Engine,
    /// Slices of the keys are joined by another launch.
    pub split: bool,
    /// A launch before it finds the blocks of keys that the mask leaves.
    pub block_mask: bool,
}

/// By which template a value is computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Form {
    /// A matmul, two matmuls, or a convolution.
    Gemm(GemmForm),
    /// Attention.
    Attention(AttentionForm),
}

/// What a kernel computes with its matmul, convolution or attention that not every form can fuse. All of them fuse
/// elementwise ops after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct FormNeeds {
    /// Whether the left and the right operand are computed, not read from memory. The right ones of attention are its
    /// keys and values.
    pub computed: [bool; 2],
    /// Rows of the result are reduced.
    pub row_reduction: bool,
    /// There are two matmuls.
    pub dual: bool,
}
impl FormNeeds {
    /// Those of a kernel's body.
    pub fn of(body: &Graph) -> FormNeeds {
        let class = |v: ValueId| Class::of(body.op(v));
        let matmuls = body.values().filter(|&v| class(v) == Class::Matmul).count();
        let reduces = |v: ValueId| matches!(class(v), Class::Reduce | Class::ArgReduce | Class::Row);
        FormNeeds {
            computed: computed_operands(body).map(|computed| !computed.is_empty()),
            row_reduction: body.values().any(|v| has_forms(class(v))) && body.values().any(reduces),
            dual: matmuls > 1,
        }
    }
    /// Whether an operand is computed.
    pub fn computes_operands(self) -> bool {
        self.computed != [false; 2]
    }
    /// Their names, as a plan states them.
    pub fn names(self) -> Vec<&'static str> {
        let [left, right] = self.computed;
        let needed = [left, right, self.row_reduction, self.dual];
        NEEDS.into_iter().zip(needed).filter_map(|(name, needed)| needed.then_some(name)).collect()
    }
    /// The needs of these names; `None` if one is unknown.
    pub fn from_names(names: &[&str]) -> Option<FormNeeds> {
        let [left, right, row_reduction, dual] = NEEDS.map(|name| names.contains(&name));
        names.iter().all(|name| NEEDS.contains(name)).then_some(FormNeeds {
            computed: [left, right],
            row_reduction,
            dual,
        })
    }
}
const NEEDS: [&str; 4] = ["left-operand", "right-operand", "row-reduction", "dual"];

/// Whether ops of a class have forms.
fn has_forms(class: Class) -> bool {
    matches!(class, Class::Matmul | Class::Conv | Class::Attention)
}

/// The values of a kernel's body that the left and the right operand of what it multiplies are computed from: more than
/// views of what it reads. What attention computes for its scores is none.
pub fn computed_operands(body: &Graph) -> [BTreeSet<ValueId>; 2] {
    let class = |v: ValueId| Class::of(body.op(v));
    let operands = |v: ValueId, side: usize| {
        let right = if class(v) == Class::Attention { 1..3 } else { 1..2 };
        let places = [0..1, right][side].clone();
        body.args(v).into_iter().enumerate().filter(move |(n, _)| places.contains(n)).map(|(_, a)| a)
    };
    [0, 1].map(|side| {
        let anchors = body.values().filter(|&v| has_forms(class(v)));
        let mut todo: Vec<ValueId> = anchors.flat_map(|v| operands(v, side)).collect();
        let (mut seen, mut computed) = (BTreeSet::new(), BTreeSet::new());
        while let Some(v) = todo.pop() {
            if has_forms(class(v)) || !seen.insert(v) {
                continue;
            }
            if !matches!(class(v), Class::Leaf | Class::View) {
                computed.insert(v);
            }
            todo.extend(body.args(v));
        }
        computed
    })
}

/// Most rows or columns of a matmul that is always sums along rows: tiles would be mostly empty.
pub const MAX_ROWS_BY_SUMS: usize = 4;
/// Most rows or columns of a matmul for which sums along rows are a candidate.
pub const MAX_ROWS_OF_SUMS: usize = 16;

/// The programs that one cost model prices: their prices err alike, those of two families do not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ProgramFamily {
    /// Tiles whose operands are staged in shared memory.
    StagedTiles,
    /// Tiles whose operands are loaded to registers.
    RegisterTiles,
    /// Sums along rows.
    Rows,
    /// A library.
    Library,
    /// Attention with staged operands.
    StagedAttention,
    /// Attention with operands in registers.
    RegisterAttention,
}
impl ProgramFamily {
    /// The family of a schedule that multiplies.
    pub fn of(schedule: &MatmulSchedule) -> ProgramFamily {
        match schedule {
            MatmulSchedule::Library => ProgramFamily::Library,
            MatmulSchedule::Matmul(p) if p.tile.stages.is_some() => ProgramFamily::StagedTiles,
            MatmulSchedule::Matmul(_) => ProgramFamily::RegisterTiles,
            MatmulSchedule::Attention(a) if a.stages.is_some() => ProgramFamily::StagedAttention,
            MatmulSchedule::Attention(_) => ProgramFamily::RegisterAttention,
        }
    }
}

impl GemmForm {
    /// A GEMM of operands in place, with no other step.
    pub fn new(template: GemmTemplate) -> GemmForm {
        let operands = [Storage::InPlace; 2];
        GemmForm { template, split: false, dual: false, swap: false, operands, patches: None }
    }
    /// Whether an operand may be computed from what is in memory: where it is used, or by the launch that copies it.
    /// Warpgroups read operands from memory.
    pub fn can_compute(&self, side: usize) -> bool {
        let reads_memory = matches!(self.template, GemmTemplate::Tiles(Engine::Wgmma | Engine::Wgmma3xTf32));
        !reads_memory || self.operands[side] == Storage::Copied
    }
}

impl Form {
    /// Whether a kernel of this form can fuse these.
    pub fn can_fuse(&self, needs: FormNeeds) -> bool {
        match self {
            Form::Gemm(form) => {
                let computed = [0, 1].map(|side| form.can_compute(side) || !needs.computed[side]);
                // A tile holds whole rows of the result, unless it is one of the transpose, or FMAs spread its rows
                // over warps.
                let row_reduction =
                    !form.swap && !matches!(form.template, GemmTemplate::Rows | GemmTemplate::Tiles(Engine::Fma));
                computed == [true; 2] && (row_reduction || !needs.row_reduction) && (form.dual || !needs.dual)
            }
            // Tensor maps copy operands to shared memory unchanged; warps load them to registers.
            Form::Attention(form) => !needs.dual && (!needs.computes_operands() || form.engine != Engine::Wgmma),
        }
    }
    /// The form that a schedule gives a kernel of this kind, with so many matmuls on a GPU; `None` for kernels that do
    /// not multiply.
    pub fn of(schedule: &Schedule, kind: KernelKind, matmuls: usize) -> Option<Form> {
        if !matches!(kind, KernelKind::Gemm | KernelKind::Attention | KernelKind::Conv) {
            return None;
        }
        match MatmulSchedule::of(schedule).ok()? {
            Some(tiled) => Some(Form::of_tiles(&tiled, kind, matmuls)),
            None if kind == KernelKind::Attention => None,
            None => {
                let patches = (kind == KernelKind::Conv).then_some(Patches::Im2col);
                Some(Form::Gemm(GemmForm { dual: matmuls > 1, patches, ..GemmForm::new(GemmTemplate::Rows) }))
            }
        }
    }
    /// The same of a schedule by tiles or a library, for a kernel that multiplies.
    pub fn of_tiles(schedule: &MatmulSchedule, kind: KernelKind, matmuls: usize) -> Form {
        match schedule {
            MatmulSchedule::Library => Form::Gemm(GemmForm::new(GemmTemplate::Library)),
            MatmulSchedule::Attention(a) => {
                Form::Attention(AttentionForm { engine: a.engine, split: a.slices > 1, block_mask: a.block_mask })
            }
            MatmulSchedule::Matmul(p) => {
                // A schedule says which operand is copied after they are swapped.
                let [left, right] = p.form.copies;
                let copies = if p.form.swap { [right, left] } else { [left, right] };
                let storage = copies.map(|copied| if copied { Storage::Copied } else { Storage::InPlace });
                let patches = if p.form.implicit { Patches::Windows } else { Patches::Im2col };
                Form::Gemm(GemmForm {
                    template: GemmTemplate::Tiles(p.tile.engine),
                    split: p.form.slices > 1,
                    dual: p.form.dual || matmuls > 1,
                    swap: p.form.swap,
                    operands: storage,
                    patches: (kind == KernelKind::Conv).then_some(patches),
                })
            }
        }
    }
}

/// The engine's name in a form.
fn engine_name(engine: Engine) -> &'static str {
    engine.name().trim_start_matches("tensor-core ")
}

impl GemmTemplate {
    /// Its name in a form.
    pub fn name(self) -> &'static str {
        match self {
            GemmTemplate::Tiles(engine) => engine_name(engine),
            GemmTemplate::Rows => "rows",
            GemmTemplate::Library => "library",
        }
    }
}
impl fmt::Display for GemmTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
impl fmt::Display for GemmForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [Some(self.template.name()), self.split.then_some("split"), self.dual.then_some("dual")];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        let (left, right) = match self.patches {
            None => ("a", "b"),
            Some(Patches::Im2col) => ("w", "im2col(x)"),
            Some(Patches::Windows) => ("w", "windows(x)"),
        };
        let stored = |name: &str, storage: Storage| match storage {
            Storage::InPlace => name.to_string(),
            Storage::Copied => format!("layout({name})"),
        };
        let (left, right) = (stored(left, self.operands[0]), stored(right, self.operands[1]));
        let words = words.join(", ");
        if self.swap {
            write!(f, "permute(gemm{{{words}}}({right}, {left}))")
        } else {
            write!(f, "gemm{{{words}}}({left}, {right})")
        }
    }
}
impl fmt::Display for AttentionForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words =
            [Some(engine_name(self.engine)), self.split.then_some("split"), self.block_mask.then_some("block-mask")];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        write!(f, "attention{{{}}}(q, k, v)", words.join(", "))
    }
}
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Gemm(form) => form.fmt(f),
            Form::Attention(form) => form.fmt(f),
        }
    }
}

impl FromStr for Form {
    type Err = String;
    fn from_str(text: &str) -> Result<Form, String> {
        let wrong = || {
            format!(
                "`{text}` is not a form; forms are such as `gemm{{wgmma, split}}(layout(a), b)`, \
                 `gemm{{mma}}(w, im2col(x))` or `attention{{wgmma}}(q, k, v)`"
            )
        };
        let inside = |text: &str| text.strip_prefix("permute(")?.strip_suffix(')').map(str::to_string);
        let (term, swap) = match inside(text.trim()) {
            Some(term) => (term, true),
            None => (text.trim().to_string(), false),
        };
        let (name, rest) = term.split_once('{').ok_or_else(wrong)?;
        let (words, rest) = rest.split_once('}').ok_or_else(wrong)?;
        let mut words = words.split(',').map(str::trim);
        let template = words.next().unwrap_or_default();
        let engine = Engine::ALL.into_iter().find(|e| engine_name(*e) == template);
        let words: Vec<&str> = words.collect();
        let known = |names: &[&str]| words.iter().all(|w| names.contains(w));
        let operands = rest.trim().strip_prefix('(').and_then(|t| t.strip_suffix(')')).ok_or_else(wrong)?;
        let form = match name {
            "attention" if operands == "q, k, v" && known(&["split", "block-mask"]) && !swap => {
                Form::Attention(AttentionForm {
                    engine: engine.ok_or_else(wrong)?,
                    split: words.contains(&"split"),
                    block_mask: words.contains(&"block-mask"),
                })
            }
            "gemm" if known(&["split", "dual"]) => {
                let template = match (template, engine) {
                    ("rows", _) => GemmTemplate::Rows,
                    ("library", _) => GemmTemplate::Library,
                    (_, Some(engine)) => GemmTemplate::Tiles(engine),
                    (_, None) => return Err(wrong()),
                };
                let (first, second) = operands.split_once(',').ok_or_else(wrong)?;
                let [left, right] = if swap { [second, first] } else { [first, second] }.map(|operand| {
                    let operand = operand.trim();
                    let copied = operand.strip_prefix("layout(").and_then(|t| t.strip_suffix(')'));
                    copied.map_or((operand, Storage::InPlace), |inner| (inner, Storage::Copied))
                });
                let patches = match (left.0, right.0) {
                    ("a", "b") => None,
                    ("w", "im2col(x)") => Some(Patches::Im2col),
                    ("w", "windows(x)") => Some(Patches::Windows),
                    _ => return Err(wrong()),
                };
                let (split, dual) = (words.contains(&"split"), words.contains(&"dual"));
                Form::Gemm(GemmForm { template, split, dual, swap, operands: [left.1, right.1], patches })
            }
            _ => return Err(wrong()),
        };
        // One text for each form.
        if form.to_string() == text.trim() { Ok(form) } else { Err(wrong()) }
    }
}
impl TryFrom<String> for Form {
    type Error = String;
    fn try_from(text: String) -> Result<Form, String> {
        text.parse()
    }
}
impl From<Form> for String {
    fn from(form: Form) -> String {
        form.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_read_as_they_print() {
        for text in [
            "gemm{wgmma}(a, b)",
            "gemm{wgmma-3xtf32, split}(layout(a), layout(b))",
            "permute(gemm{wgmma, split}(layout(b), a))",
            "gemm{rows, dual}(a, b)",
            "gemm{library}(a, b)",
            "gemm{mma}(w, im2col(x))",
            "gemm{wgmma}(w, windows(x))",
            "gemm{wgmma}(w, layout(im2col(x)))",
            "permute(gemm{wgmma}(im2col(x), w))",
            "attention{wgmma, split, block-mask}(q, k, v)",
            "attention{fma}(q, k, v)",
        ] {
            assert_eq!(text.parse::<Form>().map(|f| f.to_string()).as_deref(), Ok(text));
        }
        for text in [
            "",
            "gemm",
            "gemm{wgmma}",
            "gemm{dmma}(a, b)",
            "gemm{wgmma}(b, a)",
            "gemm{split, wgmma}(a, b)",
            "attention{rows}(q, k, v)",
        ] {
            assert!(text.parse::<Form>().expect_err(text).contains("is not a form"), "{text}");
        }
    }

    #[test]
    fn a_schedule_has_one_form() {
        let form = |text: &str, kind, matmuls| {
            Form::of(&text.parse().expect("a schedule"), kind, matmuls).map(|f| f.to_string())
        };
        let swapped = "swap a,b; stage a global; split-reduce k 3; tensor-core wgmma 128x256x64; stage a,b shared 4";
        assert_eq!(form(swapped, KernelKind::Gemm, 1).as_deref(), Some("permute(gemm{wgmma, split}(layout(b), a))"));
        let windows = "implicit-gemm; fold-window 3; tensor-core wgmma 128x256x64; stage a,b shared 4";
        assert_eq!(form(windows, KernelKind::Conv, 0).as_deref(), Some("gemm{wgmma}(w, windows(x))"));
        assert_eq!(form("split r 64; bind warp 4", KernelKind::Gemm, 2).as_deref(), Some("gemm{rows, dual}(a, b)"));
        assert_eq!(form("split r 64; bind warp 4", KernelKind::Reduction, 0), None);
        let keys = "split-reduce keys 4; tensor-core mma 16x64; block-mask";
        assert_eq!(form(keys, KernelKind::Attention, 0).as_deref(), Some("attention{mma, split, block-mask}(q, k, v)"));
    }
}
