//! What a launch looks its code up by: types of its arguments, constants and facts, as words.
//!
//! The same as a [`super::key::Key`] says, but made without allocating for each argument: every launch makes one, while
//! keys are made once for each of them.
use super::arguments::{Array, Bound, Descriptor, Noted, Text};
use crate::exchange::DLDevice;
use kiln::kernels::Options;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LaunchKey(Vec<u64>);

/// What an argument is, in the lowest byte of its first word.
#[derive(Clone, Copy)]
enum Tag {
    Pointer,
    Scalar,
    None,
    Bool,
    Int,
    Float,
    Text,
    Tuple,
    Descriptor,
    Array,
}

impl LaunchKey {
    pub fn new(arguments: &[Bound], options: &Options, device: DLDevice) -> LaunchKey {
        let mut words = Vec::with_capacity(2 * arguments.len() + 2);
        words.push((options.warps as u64) << 1 | u64::from(options.debug));
        words.push(u64::from(device.kind as u32) << 32 | u64::from(device.id as u32));
        arguments.iter().for_each(|argument| append(&mut words, argument));
        LaunchKey(words)
    }
}

/// Appends words for an argument, of which none is the beginning of another argument's.
fn append(words: &mut Vec<u64>, argument: &Bound) {
    let tagged = |tag: Tag, word: u64| word << 8 | tag as u64;
    match argument {
        Bound::Pointer(pointer) => words.push(tagged(Tag::Pointer, pointer.word())),
        Bound::Scalar { elem, noted, .. } => words.push(tagged(Tag::Scalar, noted.bits() << 8 | *elem as u64)),
        Bound::Constant { text: Text::None, .. } => words.push(tagged(Tag::None, 0)),
        Bound::Constant { text: Text::Bool(b), .. } => words.push(tagged(Tag::Bool, u64::from(*b))),
        Bound::Constant { text: Text::Int(n), .. } => words.extend([tagged(Tag::Int, 0), *n as u64]),
        Bound::Constant { text: Text::Float(bits), .. } => words.extend([tagged(Tag::Float, 0), *bits]),
        Bound::Constant { text: Text::Other(text), .. } => {
            words.push(tagged(Tag::Text, text.len() as u64));
            words.extend(text.as_bytes().chunks(8).map(|chunk| {
                let mut bytes = [0; 8];
                bytes[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(bytes)
            }));
        }
        Bound::Tuple(parts) => {
            words.push(tagged(Tag::Tuple, parts.len() as u64));
            parts.iter().for_each(|part| append(words, part));
        }
        Bound::Descriptor(descriptor) => {
            let Descriptor { base, block, pads_nan, sizes, strides } = &**descriptor;
            words.push(tagged(Tag::Descriptor, u64::from(*pads_nan)));
            words.extend([base.word(), block.len() as u64, sizes.len() as u64, strides.len() as u64]);
            words.extend(block.iter().map(|n| *n as u64));
            words.extend(Noted::of_all(strides).map(Noted::bits));
        }
        Bound::Array(array) => {
            let Array { base, size_type, sizes, strides, .. } = &**array;
            words.push(tagged(Tag::Array, *size_type as u64));
            words.extend([base.word(), sizes.len() as u64, strides.len() as u64]);
            words.extend([sizes, strides].into_iter().flat_map(|all| array.noted(all)).map(Noted::bits));
        }
    }
}
