//! Arguments of a launch as values of the kernel: which of them are parameters of the program, and under which names.
use super::Evaluator;
use crate::error::Eval;
use crate::ops::convert::cast_number;
use crate::types::Number;
use crate::unit::{Argument, ArgumentFacts, ArrayArgument, DescriptorArgument};
use crate::value::{Array, Descriptor, Tensor, Value};
use std::rc::Rc;

/// Places of a descriptor's and an array's numbers in the path of a parameter.
const BASE: usize = 0;
const SIZES: usize = 1;
const STRIDES: usize = 2;

/// Numbers of the launch, one for each axis.
struct Numbers<'a> {
    name: String,
    path: Vec<usize>,
    number: Number,
    facts: &'a [ArgumentFacts],
    count: usize,
}

impl Evaluator<'_> {
    /// Parameters of the program are named after the kernel's; those of tuples have their place after it.
    pub(super) fn argument(
        &mut self,
        name: &str,
        argument: &Argument,
        path: &[usize],
        origins: &mut Vec<Vec<usize>>,
    ) -> Eval<Value> {
        match argument {
            Argument::Pointer { elem, facts } => {
                origins.push(path.to_vec());
                self.emit.pointer_parameter(name, *elem, *facts).map(Value::Tensor)
            }
            Argument::Scalar { elem, facts } => {
                origins.push(path.to_vec());
                let narrow = elem.is_float() && elem.bits() < 32;
                let passed = if narrow { Number::Float32 } else { *elem };
                let value = self.emit.scalar_parameter(name, passed, *facts)?;
                cast_number(&mut self.emit, &value, *elem).map(Value::Tensor)
            }
            Argument::Constant(literal) => self.literal_value(literal),
            Argument::Tuple(items) => {
                let mut values = vec![];
                for (at, item) in items.iter().enumerate() {
                    let path = [path, &[at]].concat();
                    values.push(self.argument(&format!("{name}_{at}"), item, &path, origins)?);
                }
                Ok(Value::tuple(values))
            }
            Argument::Descriptor(descriptor) => self.descriptor_argument(name, descriptor, path, origins),
            Argument::Array(array) => self.array_argument(name, array, path, origins),
        }
    }

    fn descriptor_argument(
        &mut self,
        name: &str,
        argument: &DescriptorArgument,
        path: &[usize],
        origins: &mut Vec<Vec<usize>>,
    ) -> Eval<Value> {
        let DescriptorArgument { elem, block, pads_nan, facts, .. } = argument;
        origins.push([path, &[BASE]].concat());
        let base = self.emit.pointer_parameter(name, *elem, *facts)?;
        let (number, count) = (Number::Int32, block.len());
        let sizes = Numbers { number, count, ..Numbers::new(name, path, SIZES, &argument.shape) };
        let shape = self.numbers(&sizes, origins)?;
        let outer = Numbers { count: count.saturating_sub(1), ..Numbers::new(name, path, STRIDES, &argument.strides) };
        let mut strides = self.numbers(&outer, origins)?;
        strides.push(self.emit.int(Number::Int64, 1)?);
        let (block, pads_nan) = (block.clone(), *pads_nan);
        Ok(Value::Descriptor(Rc::new(Descriptor { base, shape, strides, block, pads_nan })))
    }

    fn array_argument(
        &mut self,
        name: &str,
        argument: &ArrayArgument,
        path: &[usize],
        origins: &mut Vec<Vec<usize>>,
    ) -> Eval<Value> {
        let ArrayArgument { elem, rank, size_type, facts, .. } = argument;
        origins.push([path, &[BASE]].concat());
        let base = self.emit.pointer_parameter(name, *elem, *facts)?;
        let sizes = Numbers::new(name, path, SIZES, &argument.shape);
        let shape = self.numbers(&Numbers { number: *size_type, count: *rank, ..sizes }, origins)?;
        let strides = Numbers::new(name, path, STRIDES, &argument.strides);
        let strides = self.numbers(&Numbers { count: *rank, ..strides }, origins)?;
        Ok(Value::Array(Rc::new(Array { base, shape, strides })))
    }

    fn numbers(&mut self, numbers: &Numbers, origins: &mut Vec<Vec<usize>>) -> Eval<Vec<Tensor>> {
        let mut scalars = vec![];
        for axis in 0..numbers.count {
            origins.push([&numbers.path[..], &[axis]].concat());
            let facts = numbers.facts.get(axis).copied().unwrap_or_default();
            scalars.push(self.emit.scalar_parameter(&format!("{}_{axis}", numbers.name), numbers.number, facts)?);
        }
        Ok(scalars)
    }
}

impl<'a> Numbers<'a> {
    /// None yet, of int64.
    fn new(name: &str, path: &[usize], place: usize, facts: &'a [ArgumentFacts]) -> Numbers<'a> {
        let what = if place == SIZES { "size" } else { "stride" };
        let (name, path) = (format!("{name}_{what}"), [path, &[place]].concat());
        Numbers { name, path, number: Number::Int64, facts, count: 0 }
    }
}
