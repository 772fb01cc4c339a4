//! Kernels run by the interpreter, on the memory of a launch, with checks: what is wrong with accesses, told by tensor,
//! line and instance.
use super::{Argument, Compiled, Failure, Options, Signature, Unit, checked, without_assembly};
use kiln_block::{BlockProgram, Elem, Inst, Type};
use kiln_interp::block::{Buffer, Checks, Finding, FindingKind, InterpError, Launch, Observer, UNWRITTEN, run_checked};
use kiln_kernels::Place;

/// A kernel for the interpreter.
pub struct Interpreted {
    unit: Unit,
    compiled: Compiled,
}

/// An argument with the bytes of memory that are behind an address.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// As code takes it.
    pub argument: Argument,
    /// Of a tensor.
    pub bytes: usize,
}

/// Something that a check found.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckFinding {
    /// `out_of_bounds`, `missing_mask`, `misaligned`, `overflow`, `race`, `conflict`, `uninitialised` or `assertion`.
    pub kind: &'static str,
    /// What is wrong, in a sentence.
    pub message: String,
    /// What to write instead.
    pub help: &'static str,
    /// The parameter whose memory is accessed.
    pub tensor: Option<String>,
    /// The first instance that did it.
    pub instance: [usize; 3],
    /// Where the access is.
    pub place: Option<Place>,
    /// Where the other access of a race is.
    pub other: Option<Place>,
}

/// What a running kernel shows: `print`, `device_print` or `breakpoint`.
pub struct Shown<'a> {
    /// The instance.
    pub instance: [usize; 3],
    /// Where it is in the source.
    pub place: Option<Place>,
    /// What was to be printed before the values.
    pub text: &'a str,
    /// Names of the values, at a breakpoint.
    pub names: Option<&'a [String]>,
    /// Type, shape and bytes of each value.
    pub values: Vec<(Elem, &'a [usize], &'a [u8])>,
}

/// Who is shown values; an error ends the run.
pub type Show<'a> = dyn FnMut(Shown) -> Result<(), String> + 'a;

/// The pattern of memory that nothing has written, as 16-bit words.
pub const UNWRITTEN_PATTERN: u16 = UNWRITTEN;

impl Interpreted {
    /// The kernel for arguments of these types. Asserts are checked.
    ///
    /// # Errors
    /// As [`super::Kernel::compile`].
    pub fn new(unit: Unit, signature: &Signature, options: &Options) -> Result<Interpreted, Failure> {
        let options = Options { debug: true, interpret: true, ..options.clone() };
        let mut compiled = checked(&unit, signature, &options)?;
        without_assembly(&unit, &mut compiled)?;
        Ok(Interpreted { unit, compiled })
    }
    /// As [`super::Stages::parameters`].
    pub fn parameters(&self) -> &[Vec<usize>] {
        &self.compiled.parameters
    }
    /// What `static_print` wrote.
    pub fn printed(&self) -> &[String] {
        &self.compiled.printed
    }
    /// Runs all instances, and gives what the checks found. `finds_unwritten`: memory that nothing has written holds
    /// [`UNWRITTEN_PATTERN`].
    ///
    /// # Errors
    /// What ends the run: an access through what is no address, a loop whose step is not positive, the observer.
    ///
    /// # Safety
    /// There is an operand for each of [`Interpreted::parameters`], of its type; each address has as many bytes of this
    /// process's memory behind it, which nobody else accesses.
    pub unsafe fn run(
        &self,
        grid: [usize; 3],
        operands: &[Operand],
        finds_unwritten: bool,
        show: &mut Show,
    ) -> Result<Vec<CheckFinding>, String> {
        let program = &self.compiled.program;
        // SAFETY: this function's contract.
        let (mut buffers, starts) = unsafe { gathered(program, operands) }?;
        let before: Vec<Vec<u8>> = buffers.iter().map(|b| b.bytes.clone()).collect();
        let mut checks = Checks::new(program, buffers.len(), finds_unwritten);
        let mut watcher = Watcher { kernel: self, show, variables: vec![], stopped: None };
        let mut origins = vec![0; buffers.len()];
        for (operand, (buffer, at)) in operands.iter().zip(&starts) {
            if let Argument::Address(address) = operand.argument {
                origins[*buffer] = address - *at as u64;
            }
        }
        let launch = Launch { grid, buffers: &mut buffers, starts: &starts, origins: &origins };
        let ended = run_checked(program, launch, &mut checks, &mut watcher);
        for ((operand, buffer), before) in operands.iter().zip(&buffers).zip(before) {
            if let Argument::Address(address) = operand.argument
                && buffer.bytes != before
            {
                // SAFETY: this function's contract; the buffer was copied from there.
                unsafe {
                    std::ptr::copy_nonoverlapping(buffer.bytes.as_ptr(), address as *mut u8, buffer.bytes.len());
                }
            }
        }
        let mut found: Vec<CheckFinding> = checks.findings().iter().map(|f| self.told(f)).collect();
        match (ended, watcher.stopped) {
            (Ok(()), _) => {}
            (Err(_), Some(why)) => return Err(why),
            (Err(InterpError::Op { instance, what, op, .. }), None) if op.starts_with("assert") => {
                found.push(self.failed_assertion(instance, what));
            }
            (Err(other), None) => return Err(other.to_string()),
        }
        Ok(found)
    }

    fn place(&self, inst: Inst) -> Option<Place> {
        self.unit.place(*self.compiled.sites.get(inst.0 as usize)?)
    }
    fn failed_assertion(&self, instance: [usize; 3], what: String) -> CheckFinding {
        CheckFinding {
            kind: "assertion",
            message: format!("{what}, in instance {}", position(instance)),
            help: "the run ended there",
            tensor: None,
            instance,
            place: None,
            other: None,
        }
    }
    fn told(&self, finding: &Finding) -> CheckFinding {
        let name = |n: usize| self.compiled.program.params.get(n).map(|p| p.name.clone());
        let tensor = finding.buffer.and_then(name);
        let (kind, message, help, other) = self.words(finding, tensor.as_deref());
        let instance = format!(", in instance {}", position(finding.instance));
        let more = match finding.count - 1 {
            0 => String::new(),
            n => format!(" ({n} more such accesses)"),
        };
        CheckFinding {
            kind,
            message: format!("{message}{instance}{more}"),
            help,
            tensor,
            instance: finding.instance,
            place: self.place(finding.inst),
            other: other.and_then(|inst| self.place(inst)),
        }
    }
    fn words(&self, finding: &Finding, tensor: Option<&str>) -> (&'static str, String, &'static str, Option<Inst>) {
        let name = tensor.map_or_else(|| "memory of no tensor of the launch".to_string(), |name| format!("`{name}`"));
        let at = finding.element;
        let done = if finding.writes { "written" } else { "read" };
        match finding.kind {
            FindingKind::OutOfBounds { masked } if !masked || self.compiled.unmasked.contains(&finding.inst.0) => (
                "missing_mask",
                format!("{name} is {done} at element {at}, which it does not have, and the access has no mask"),
                "give the access a mask, such as `mask=offsets < n`",
                None,
            ),
            FindingKind::OutOfBounds { .. } => (
                "out_of_bounds",
                format!("{name} is {done} at element {at}, which it does not have, and the mask lets it through"),
                "compare what the mask is made of with the sizes of the tensor",
                None,
            ),
            FindingKind::Misaligned => (
                "misaligned",
                format!("{name} is {done} as {} at an address that is no multiple of its size", finding.elem),
                "elements start at multiples of their size",
                None,
            ),
            FindingKind::Overflow { meant } => (
                "overflow",
                format!("the offset {meant} into {name} overflows, and becomes {at}"),
                "compute it in 64 bits: `pid.to(kl.int64)`, or give the stride as an int64",
                None,
            ),
            FindingKind::Race { other, other_instance, other_writes } => {
                let [now, before] =
                    [finding.writes, other_writes].map(|writes| if writes { "writes" } else { "reads" });
                let message = format!(
                    "instance {} {before} element {at} of {name}, another one {now} it, and nothing orders them",
                    position(other_instance)
                );
                ("race", message, "let one instance do both, update it atomically, or launch two kernels", Some(other))
            }
            FindingKind::Conflict => (
                "conflict",
                format!("a store writes two different values to element {at} of {name}"),
                "give each element one place, or a mask that leaves one of them",
                None,
            ),
            FindingKind::Unwritten => (
                "uninitialised",
                format!("element {at} of {name} is read, and nothing has written it"),
                "fill the tensor, for instance by torch.zeros, or write it first",
                None,
            ),
        }
    }
}

impl std::fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind.replace('_', " "), self.message)?;
        if let Some(place) = &self.place {
            write!(f, "\n{place}")?;
        }
        if let Some(other) = self.other.as_ref().filter(|other| Some(*other) != self.place.as_ref()) {
            write!(f, "\nthe other access\n{other}")?;
        }
        write!(f, "\nhelp: {}", self.help)
    }
}

fn position([x, y, z]: [usize; 3]) -> String {
    format!("({x}, {y}, {z})")
}

struct Watcher<'a, 's> {
    kernel: &'a Interpreted,
    show: &'a mut Show<'s>,
    /// Variables of a breakpoint, until its last one.
    variables: Vec<(String, Buffer)>,
    /// What the observer said when it ended the run.
    stopped: Option<String>,
}

impl Observer for Watcher<'_, '_> {
    fn print(&mut self, inst: Inst, instance: [usize; 3], text: &str, value: Option<&Buffer>) -> Result<(), String> {
        let place = self.kernel.place(inst);
        let printed = self.kernel.compiled.shown.get(&inst.0);
        let value = value.map(|v| printed.map_or_else(|| v.clone(), |printed| without_pads(v, &printed.shape)));
        let told = match (printed.and_then(|p| p.variable.as_ref()), value) {
            (Some(variable), Some(value)) => {
                self.variables.push((variable.name.clone(), value));
                if !variable.is_last {
                    return Ok(());
                }
                let (names, values): (Vec<_>, Vec<_>) = std::mem::take(&mut self.variables).into_iter().unzip();
                (self.show)(Shown { instance, place, text, names: Some(&names), values: seen(&values) })
            }
            (_, value) => {
                let values = Vec::from_iter(value);
                (self.show)(Shown { instance, place, text, names: None, values: seen(&values) })
            }
        };
        told.inspect_err(|why| self.stopped = Some(why.clone()))
    }
}

/// Type, shape and bytes of values.
fn seen(values: &[Buffer]) -> Vec<(Elem, &[usize], &[u8])> {
    values.iter().map(|v| (v.elem, &v.shape[..], &v.bytes[..])).collect()
}

/// The first elements along each axis.
fn without_pads(value: &Buffer, shape: &[usize]) -> Buffer {
    if value.shape == shape {
        return value.clone();
    }
    let size = value.elem.bytes();
    let mut bytes = vec![];
    for n in 0..shape.iter().product() {
        let (mut rest, mut at, mut stride) = (n, 0, 1);
        for (axis, own) in shape.iter().enumerate().rev() {
            at += rest % own * stride;
            rest /= own;
            stride *= value.shape[axis];
        }
        bytes.extend_from_slice(&value.bytes[at * size..][..size]);
    }
    Buffer::new(value.elem, shape, bytes)
}

/// Of each parameter its buffer, and the byte in it that it points to.
type Starts = Vec<(usize, usize)>;

/// Buffers with a copy of the memory of each tensor, and of each parameter its buffer and first byte. Tensors that share
/// memory share a buffer: that of the first of them by address.
///
/// # Safety
/// As [`Interpreted::run`].
unsafe fn gathered(program: &BlockProgram, operands: &[Operand]) -> Result<(Vec<Buffer>, Starts), String> {
    let elem = |n: usize| program.ty(program.params[n].value).elem().unwrap_or(Elem::I32);
    let mut buffers: Vec<Buffer> = (0..operands.len()).map(|n| Buffer::new(elem(n), &[0], vec![])).collect();
    let mut starts: Starts = (0..operands.len()).map(|n| (n, 0)).collect();
    let mut tensors: Vec<(u64, usize, usize)> = vec![];
    for (n, (operand, parameter)) in operands.iter().zip(&program.params).enumerate() {
        match operand.argument {
            Argument::Address(address) if matches!(program.ty(parameter.value), Type::Ptr { .. }) => {
                tensors.push((address, operand.bytes, n));
            }
            Argument::Scalar(bytes) => {
                let size = elem(n).bytes();
                buffers[n] = Buffer::new(elem(n), &[], bytes[..size].to_vec());
            }
            Argument::Address(_) => return Err(format!("`{}` is no tensor", parameter.name)),
        }
    }
    tensors.sort_unstable();
    let mut open: Option<(u64, usize, usize)> = None;
    for (address, bytes, n) in tensors {
        match &mut open {
            Some((start, size, first)) if address < *start + *size as u64 => {
                let offset = (address - *start) as usize;
                *size = (*size).max(offset + bytes);
                starts[n] = (*first, offset);
            }
            _ => {
                // SAFETY: this function's contract.
                unsafe { fill(&mut buffers, open) };
                open = Some((address, bytes, n));
            }
        }
    }
    // SAFETY: as above.
    unsafe { fill(&mut buffers, open) };
    Ok((buffers, starts))
}

/// Copies memory to the buffer of its first tensor.
///
/// # Safety
/// The address has as many bytes behind it.
unsafe fn fill(buffers: &mut [Buffer], range: Option<(u64, usize, usize)>) {
    let Some((address, size, first)) = range.filter(|range| range.1 > 0) else { return };
    let elem = buffers[first].elem;
    // SAFETY: this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, size) }.to_vec();
    buffers[first] = Buffer::new(elem, &[size / elem.bytes()], bytes);
}
