//! The key of the variant that fits a launch: types of its arguments, constants, and facts.
use super::arguments::{Bound, Text};
use crate::exchange::DLDevice;
use kiln::kernels::{ArgumentFacts, ArrayArgument, DescriptorArgument, Number, Options, Relevance};

/// What a variant depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    arguments: Vec<Part>,
    warps: usize,
    debug: bool,
    device: (i32, i32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Part {
    Pointer(Number, ArgumentFacts),
    Scalar(Number, ArgumentFacts),
    Constant(Text),
    Tuple(Vec<Part>),
    Descriptor(DescriptorArgument),
    Array(ArrayArgument),
}

impl Key {
    pub fn new(arguments: &[Bound], options: &Options, device: DLDevice) -> Key {
        let arguments = arguments.iter().map(Part::of).collect();
        Key { arguments, warps: options.warps, debug: options.debug, device: (device.kind, device.id) }
    }
    /// Without facts that a kernel may make no use of.
    pub fn types(&self) -> Key {
        let mut key = self.clone();
        key.arguments.iter_mut().for_each(|part| part.facts(&ArgumentFacts::forget_value));
        key
    }
    /// Without facts about numbers; what is known of addresses stays.
    pub fn without_numbers(&self) -> Key {
        let mut key = self.clone();
        key.arguments.iter_mut().for_each(Part::forget_numbers);
        key
    }
    /// Whether all of its facts hold where those of another key of the same types do.
    pub fn is_implied_by(&self, other: &Key) -> bool {
        let holds = |(known, other): (&ArgumentFacts, &ArgumentFacts)| {
            known.div.is_none_or(|div| other.div.is_some_and(|other| other.is_multiple_of(div)))
                && (known.equals.is_none() || known.equals == other.equals)
        };
        self.all_facts().iter().zip(other.all_facts()).all(|(a, b)| holds((a, &b)))
    }
    /// How much it says of what a kernel may make no use of: values, and factors of two.
    pub fn count_facts(&self) -> u32 {
        let facts = |f: &ArgumentFacts| f.div.map_or(0, u64::trailing_zeros) + u32::from(f.equals.is_some());
        self.all_facts().iter().map(facts).sum()
    }
    fn all_facts(&self) -> Vec<ArgumentFacts> {
        let mut all = vec![];
        self.arguments.iter().for_each(|part| part.note_facts(&mut all));
        all
    }
    /// Without facts that the code makes no use of, of which `parameters` are the arguments.
    pub fn relevant(&self, parameters: &[Vec<usize>], relevance: &[Relevance]) -> Key {
        let mut key = self.clone();
        for (path, matters) in parameters.iter().zip(relevance) {
            let [first, rest @ ..] = &path[..] else { continue };
            let Some(facts) = key.arguments.get_mut(*first).and_then(|part| part.facts_at(rest)) else { continue };
            facts.div = facts.div.filter(|_| matters.div);
            facts.equals = facts.equals.filter(|_| matters.equals);
        }
        key
    }
}

impl Part {
    fn of(argument: &Bound) -> Part {
        match argument {
            Bound::Pointer(pointer) => Part::Pointer(pointer.elem, pointer.facts()),
            Bound::Scalar { elem, noted, .. } => Part::Scalar(*elem, noted.facts()),
            Bound::Constant { text, .. } => Part::Constant(text.clone()),
            Bound::Tuple(parts) => Part::Tuple(parts.iter().map(Part::of).collect()),
            Bound::Descriptor(descriptor) => Part::Descriptor(descriptor.known()),
            Bound::Array(array) => Part::Array(array.known()),
        }
    }
    fn note_facts(&self, all: &mut Vec<ArgumentFacts>) {
        match self {
            Part::Pointer(_, facts) | Part::Scalar(_, facts) => all.push(*facts),
            Part::Tuple(parts) => parts.iter().for_each(|part| part.note_facts(all)),
            Part::Descriptor(known) => {
                all.extend([known.facts].iter().chain(&known.shape).chain(&known.strides));
            }
            Part::Array(known) => {
                all.extend([known.facts].iter().chain(&known.shape).chain(&known.strides));
            }
            Part::Constant(_) => {}
        }
    }
    /// Visits all facts.
    fn facts(&mut self, visit: &dyn Fn(&mut ArgumentFacts)) {
        match self {
            Part::Pointer(_, facts) | Part::Scalar(_, facts) => visit(facts),
            Part::Tuple(parts) => parts.iter_mut().for_each(|part| part.facts(visit)),
            Part::Descriptor(known) => {
                let sizes = known.shape.iter_mut().chain(&mut known.strides);
                sizes.chain([&mut known.facts]).for_each(visit);
            }
            Part::Array(known) => {
                let sizes = known.shape.iter_mut().chain(&mut known.strides);
                sizes.chain([&mut known.facts]).for_each(visit);
            }
            Part::Constant(_) => {}
        }
    }
    fn forget_numbers(&mut self) {
        match self {
            Part::Scalar(_, facts) => facts.forget_value(),
            Part::Tuple(parts) => parts.iter_mut().for_each(Part::forget_numbers),
            Part::Descriptor(known) => {
                known.shape.iter_mut().chain(&mut known.strides).for_each(ArgumentFacts::forget_value);
            }
            Part::Array(known) => {
                known.shape.iter_mut().chain(&mut known.strides).for_each(ArgumentFacts::forget_value);
            }
            Part::Pointer(..) | Part::Constant(_) => {}
        }
    }
    /// The facts about the argument at a place in tuples.
    fn facts_at(&mut self, path: &[usize]) -> Option<&mut ArgumentFacts> {
        match (self, path) {
            (Part::Pointer(_, facts) | Part::Scalar(_, facts), []) => Some(facts),
            (Part::Tuple(parts), [first, rest @ ..]) => parts.get_mut(*first)?.facts_at(rest),
            (Part::Descriptor(known), [0]) => Some(&mut known.facts),
            (Part::Descriptor(known), [1, axis]) => known.shape.get_mut(*axis),
            (Part::Descriptor(known), [2, axis]) => known.strides.get_mut(*axis),
            (Part::Array(known), [0]) => Some(&mut known.facts),
            (Part::Array(known), [1, axis]) => known.shape.get_mut(*axis),
            (Part::Array(known), [2, axis]) => known.strides.get_mut(*axis),
            _ => None,
        }
    }
}
