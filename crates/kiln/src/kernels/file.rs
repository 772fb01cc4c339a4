//! A kernel of a Python file for arguments that are described in words, as `kiln kernel` takes both.
use super::{ArgumentFacts, ArrayArgument, Failure, Known, LaunchValues, Literal, Number, Signature, Unit};
use crate::error::Error;
use kiln_kernels::{Parameter, SourceFile, parameters, unit_of_file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How an argument is described.
const FORM: &str = "an argument is `*f32` for a tensor, `*f32[8,64]` for an array, `i32`, `i32=4096` or `f32` for a number (`i32:16`: a multiple of \
                    16), or the value of a constexpr, each after `NAME=` or in the order of the parameters";

/// The kernel in `FILE.py:NAME`; the file's only kernel needs no name.
///
/// # Errors
/// If the file cannot be read, is not Python, or has no such kernel.
pub fn open(place: &str) -> Result<Unit, Failure> {
    let (path, name) = match place.rsplit_once(".py:") {
        Some((stem, name)) => (PathBuf::from(format!("{stem}.py")), name),
        None => {
            let help = "give the file and the kernel's name, as in `kernels.py:softmax`";
            return Err(Error::usage(format!("`{place}` is not FILE.py:NAME"), help).into());
        }
    };
    let text = std::fs::read_to_string(&path).map_err(|e| Error::reading(&path, e))?;
    let file = SourceFile { path: path.display().to_string(), text };
    Ok(unit_of_file(&file, name, &mut find_module)?)
}

/// The file of a module, near the file that imports it: as Python finds it in the package, or beside the package.
fn find_module(importer: &str, level: usize, module: &str) -> Option<SourceFile> {
    let folder = Path::new(importer).parent()?;
    let relative: PathBuf = module.split('.').filter(|part| !part.is_empty()).collect();
    let roots: Vec<&Path> = match level {
        0 => folder.ancestors().take_while(|f| f.as_os_str().is_empty() || f.is_dir()).collect(),
        _ => folder.ancestors().nth(level - 1).into_iter().collect(),
    };
    let files = roots.iter().flat_map(|root| {
        let stem = root.join(&relative);
        [stem.with_extension("py"), stem.join("__init__.py")]
    });
    files.into_iter().find(|f| f.is_file()).and_then(|f| {
        let text = std::fs::read_to_string(&f).ok()?;
        Some(SourceFile { path: f.display().to_string(), text })
    })
}

/// Values by their place in an argument.
type Values = Vec<(Vec<usize>, i64)>;

/// Arguments that were described in words.
#[derive(Clone, PartialEq, Debug)]
pub struct Described {
    /// Their types and facts.
    pub signature: Signature,
    /// The values that were given, by the argument's number and the place in it.
    values: BTreeMap<Vec<usize>, i64>,
}

impl Described {
    /// Reads arguments for the parameters of a kernel, separated by commas.
    ///
    /// # Errors
    /// If one is not described, is described twice, or is no parameter.
    pub fn parse(unit: &Unit, text: &str) -> Result<Described, Failure> {
        let parameters = parameters(unit)?;
        let mut words: Vec<Option<&str>> = vec![None; parameters.len()];
        for (at, word) in split(text).into_iter().enumerate() {
            let named = word.split_once('=').and_then(|(name, value)| {
                let at = parameters.iter().position(|p| p.name == name.trim())?;
                Some((at, value.trim()))
            });
            let (at, word) = named.unwrap_or((at, word));
            let slot = words.get_mut(at).ok_or_else(|| {
                Error::usage(format!("`{word}` is more than the {} parameters", parameters.len()), FORM)
            })?;
            if slot.replace(word).is_some() {
                return Err(Error::usage(format!("`{}` is described twice", parameters[at].name), FORM).into());
            }
        }
        let (mut arguments, mut values) = (vec![], BTreeMap::new());
        for (at, (parameter, word)) in parameters.iter().zip(words).enumerate() {
            let (argument, given) = argument(parameter, word)?;
            arguments.push(argument);
            values.extend(given.into_iter().map(|(place, value)| ([vec![at], place].concat(), value)));
        }
        Ok(Described { signature: Signature { arguments }, values })
    }
    /// The numbers of a launch, for a program that takes these arguments as its parameters.
    pub fn launch(&self, origins: &[Vec<usize>], grid: [usize; 3]) -> LaunchValues {
        let value = |path: &Vec<usize>| self.values.get(path).copied();
        LaunchValues { grid, parameters: origins.iter().map(value).collect() }
    }
}

/// Words between commas that are in no bracket.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut all) = (0usize, 0, vec![]);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    all.push(text[start..].trim());
    if all.last().is_some_and(|word| word.is_empty()) {
        all.pop();
    }
    all
}

fn argument(parameter: &Parameter, word: Option<&str>) -> Result<(Known, Values), Failure> {
    let name = &parameter.name;
    let Some(word) = word else {
        return match &parameter.default {
            Some(default) => Ok((Known::Constant(default.clone()), vec![])),
            None => {
                let ty = if parameter.is_constexpr { format!("{name}=128") } else { format!("{name}=*f32") };
                Err(Error::usage(format!("`{name}` is not described"), format!("add it, such as `{ty}`; {FORM}"))
                    .into())
            }
        };
    };
    if !parameter.is_constexpr
        && let Some(described) = typed(word)
    {
        return Ok(described);
    }
    let value = literal(word).ok_or_else(|| Error::usage(format!("`{word}` does not describe `{name}`"), FORM))?;
    Ok((Known::Constant(value), vec![]))
}

/// `*f32`, `i32`, `i32:16`, `i32=4096`. Tensors are as torch allocates them: aligned, of fewer than 2^31 elements, and
/// no two share memory.
fn typed(word: &str) -> Option<(Known, Values)> {
    if let Some(elem) = word.strip_prefix('*') {
        let facts = ArgumentFacts { div: Some(16), span32: true, noalias: true, ..ArgumentFacts::default() };
        if let Some((elem, sizes)) = elem.strip_suffix(']').and_then(|w| w.split_once('[')) {
            return array(Number::named(elem.trim())?, sizes, facts);
        }
        let elem = Number::named(elem.trim().trim_end_matches(":16"))?;
        return Some((Known::Pointer { elem, facts }, vec![]));
    }
    let (ty, value) = word.split_once('=').map_or((word, None), |(ty, value)| (ty, Some(value.trim())));
    let (ty, hint) = ty.trim().split_once(':').map_or((ty.trim(), None), |(ty, hint)| (ty, Some(hint.trim())));
    let elem = Number::named(ty)?;
    let number: Option<i64> = value.and_then(|value| value.parse().ok());
    let div = (hint == Some("16") || number.is_some_and(|n| n % 16 == 0)).then_some(16);
    let equals = (hint == Some("1") || number == Some(1)).then_some(1);
    let facts = if elem.is_float() {
        ArgumentFacts::default()
    } else {
        ArgumentFacts { div, equals, ..ArgumentFacts::default() }
    };
    Some((Known::Scalar { elem, facts }, number.map(|n| (vec![], n)).into_iter().collect()))
}

/// `*f32[1000,768]`: a contiguous array of these sizes.
fn array(elem: Number, sizes: &str, facts: ArgumentFacts) -> Option<(Known, Values)> {
    let sizes: Vec<i64> = split(sizes).into_iter().map(|n| n.parse().ok().filter(|n| *n > 0)).collect::<Option<_>>()?;
    let mut strides = vec![1i64; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis].checked_mul(sizes[axis])?;
    }
    let of = |all: &[i64]| all.iter().map(|n| int_facts(*n)).collect();
    let known = ArrayArgument {
        elem,
        rank: sizes.len(),
        size_type: Number::Int32,
        facts,
        shape: of(&sizes),
        strides: of(&strides),
    };
    let values = |place: usize, all: Vec<i64>| all.into_iter().enumerate().map(move |(axis, n)| (vec![place, axis], n));
    Some((Known::Array(known), values(1, sizes).chain(values(2, strides)).collect()))
}

fn int_facts(n: i64) -> ArgumentFacts {
    ArgumentFacts { div: (n % 16 == 0).then_some(16), equals: (n == 1).then_some(1), ..ArgumentFacts::default() }
}

fn literal(word: &str) -> Option<Literal> {
    let quoted = |quote: char| word.strip_prefix(quote)?.strip_suffix(quote);
    Some(match word {
        "None" => Literal::None,
        "True" => Literal::Bool(true),
        "False" => Literal::Bool(false),
        _ => {
            if let Ok(n) = word.parse() {
                Literal::Int(n)
            } else if let Ok(x) = word.parse() {
                Literal::Float(x)
            } else if let Some(text) = quoted('"').or_else(|| quoted('\'')) {
                Literal::Str(text.into())
            } else if let Some(inner) = word.strip_prefix('(').and_then(|w| w.strip_suffix(')')) {
                Literal::Tuple(split(inner).into_iter().map(literal).collect::<Option<_>>()?)
            } else {
                Literal::Dtype(Number::named(word.rsplit('.').next().unwrap_or(word))?)
            }
        }
    })
}
