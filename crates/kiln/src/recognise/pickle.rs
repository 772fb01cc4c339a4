//! Finds out what a pickle's outermost object is. Only scans the pickle's instructions; never executes any.

/// Most bytes of a pickle that are read: names come first, and a checkpoint's list of tensors is small.
pub const ENOUGH: u64 = 1 << 24;

/// The outermost object.
#[derive(Debug, PartialEq)]
pub enum Top {
    /// A dict of tensors by name.
    Weights,
    /// A dict with such a dict under this key.
    Checkpoint(String),
    /// An `nn.Module`, by its class.
    Module(String),
    Tensor,
    /// Anything else, described in words.
    Other(String),
}

/// Start of a file of the old (not zip) `torch.save` format: a magic number, a version and the system's properties
/// precede the object, each as a pickle.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// The number of pickles that precede the object, if a file with this start contains pickles.
pub fn begins(start: &[u8]) -> Option<usize> {
    if start.starts_with(LEGACY) {
        return Some(3);
    }
    // Protocols 2 to 5 begin with their number, followed by an instruction that makes an object.
    matches!(start, [0x80, 2..=5, next, ..] if b"\x95}](c\x8cX\x8a".contains(next)).then_some(0)
}

/// The part of an instruction that matters here.
#[derive(Debug, PartialEq)]
enum Item<'a> {
    /// A class or function by module and name.
    Global(String, String),
    Text(&'a str),
    Dict,
    List,
    End,
    Nothing,
}

/// The outermost object of the pickle that comes after `skip` others.
pub fn top(bytes: &[u8], skip: usize) -> Top {
    let mut reader = Reader { bytes, last: vec![] };
    let mut ends = 0;
    while ends < skip {
        match reader.next() {
            Some(Item::End) => ends += 1,
            Some(_) => {}
            None => break,
        }
    }
    let (mut first, mut texts) = (None, vec![]);
    while let Some(item) = reader.next() {
        match item {
            Item::End => break,
            Item::Text(t) => texts.push(t),
            Item::Nothing => {}
            // The first instruction that makes an object determines the result.
            made => {
                first.get_or_insert(made);
            }
        }
    }
    let module = texts.contains(&"_parameters") && texts.contains(&"_modules");
    match first {
        Some(Item::Global(m, n)) if m == "collections" && n == "OrderedDict" => Top::Weights,
        Some(Item::Global(m, n)) if m == "torch._utils" && n.starts_with("_rebuild") => Top::Tensor,
        Some(Item::Global(m, n)) if module => Top::Module(format!("{m}.{n}")),
        Some(Item::Global(m, n)) => Top::Other(format!("object of class {m}.{n}")),
        Some(Item::Dict) => dict(&texts),
        _ => Top::Other("list or number".into()),
    }
}

/// Classifies a dict by the strings in it, at any depth.
fn dict(texts: &[&str]) -> Top {
    const KEYS: [&str; 6] = ["state_dict", "model_state_dict", "model_state", "model", "net", "ema"];
    match KEYS.iter().find(|k| texts.contains(k)) {
        Some(key) => Top::Checkpoint(key.to_string()),
        None if texts.contains(&"storage") => Top::Weights,
        None => Top::Other("dict".into()),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// The last two strings: the module and name of a class in protocols that take these from the stack.
    last: Vec<&'a str>,
}
impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(head)
    }
    /// A little-endian length of `n` bytes, and that many bytes.
    fn counted(&mut self, n: usize) -> Option<&'a [u8]> {
        let length =
            self.take(n)?.iter().rev().try_fold(0usize, |v, b| v.checked_mul(256)?.checked_add(usize::from(*b)))?;
        self.take(length)
    }
    fn line(&mut self) -> Option<String> {
        let end = self.bytes.iter().position(|b| *b == b'\n')?;
        let line = self.take(end + 1)?;
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
    fn text(&mut self, n: usize) -> Option<Item<'a>> {
        let text = std::str::from_utf8(self.counted(n)?).unwrap_or("");
        if self.last.len() == 2 {
            self.last.remove(0);
        }
        self.last.push(text);
        Some(Item::Text(text))
    }
    /// The next instruction (Python's pickletools lists them); `None` at the end or at an unknown one.
    fn next(&mut self) -> Option<Item<'a>> {
        let code = self.take(1)?[0];
        let pass = |bytes: Option<&[u8]>| bytes.map(|_| Item::Nothing);
        match code {
            b'c' => Some(Item::Global(self.line()?, self.line()?)),
            0x93 => match self.last[..] {
                [module, name] => Some(Item::Global(module.into(), name.into())),
                _ => None,
            },
            b'X' => self.text(4),
            0x8c => self.text(1),
            0x8d => self.text(8),
            b'}' => Some(Item::Dict),
            b']' => Some(Item::List),
            b'.' => Some(Item::End),
            0x80 | b'q' | b'h' | b'K' | 0x82 => pass(self.take(1)),
            b'M' | 0x83 => pass(self.take(2)),
            b'J' | b'r' | b'j' | 0x84 => pass(self.take(4)),
            b'G' | 0x95 => pass(self.take(8)),
            b'U' | b'C' | 0x8a => pass(self.counted(1)),
            b'T' | b'B' | 0x8b => pass(self.counted(4)),
            0x8e | 0x96 => pass(self.counted(8)),
            b'V' | b'S' | b'I' | b'L' | b'F' | b'P' | b'p' | b'g' => self.line().map(|_| Item::Nothing),
            b'i' => {
                self.line()?;
                self.line().map(|_| Item::Nothing)
            }
            b'('
            | b')'
            | b'l'
            | b't'
            | b'0'
            | b'1'
            | b'2'
            | b'N'
            | b'R'
            | b'b'
            | b's'
            | b'u'
            | b'a'
            | b'e'
            | b'Q'
            | b'o'
            | b'd'
            | 0x81
            | 0x85..=0x89
            | 0x8f..=0x92
            | 0x94
            | 0x97
            | 0x98 => Some(Item::Nothing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_class() {
        // pickle.dumps(collections.OrderedDict(), 2) and the same with protocol 4.
        assert_eq!(top(b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01.", 0), Top::Weights);
        let four =
            b"\x80\x04\x95\"\x00\x00\x00\x00\x00\x00\x00\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94.";
        assert_eq!(top(four, 0), Top::Weights);
        // pickle.dumps({'model': 1}, 2)
        assert_eq!(top(b"\x80\x02}q\x00X\x05\x00\x00\x00modelq\x01K\x01s.", 0), Top::Checkpoint("model".into()));
    }

    #[test]
    fn damaged_pickles_end() {
        for bytes in [
            &b""[..],
            b"\x80",
            b"\x80\x02X\xff\xff\xff\xff",
            b"\x80\x02c",
            b"\x80\x04\x93",
            b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert_eq!(top(bytes, 0), Top::Other("list or number".into()));
        }
    }
}
