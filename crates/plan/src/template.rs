//! Templates: the way in which a kernel's matmul, convolution or attention is lowered, as a constraint or a measurement names it.
//!
//! The template of a lowered kernel is read off its steps (`crates/lower/src/template.rs`), not recorded by whoever chose it. A constraint
//! requests one through the plan ([`Reason::template`](crate::Reason::template)), and lowering returns an error if the steps have another.
//!
//! Tuning only names templates. A store says which template of a matmul was the fastest, for exactly this body, machine and version of the
//! templates (`kiln_lower::TEMPLATES`, raised when the generated programs change). A plan made with a store names that template, so it can
//! be printed, pinned and compiled without the store. An entry that lowering refuses is left out, and `explain` says why. The template that
//! lowering chooses by itself is always a candidate, and stays unless another is measurably faster.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A family of templates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Asynchronous matmuls by warpgroups, with operands loaded through tensor maps (TMA).
    Warpgroup,
    /// One tile of the result per program instance, with operands loaded through registers.
    Tile,
    /// Fused attention with an online softmax.
    Flash,
    /// Each element of the result as a sum along a row.
    Rows,
    /// A library: Kiln's packed matmuls on the host, cuBLASLt on a GPU.
    Library,
}
impl Family {
    /// Every family.
    pub const ALL: [Family; 5] = [Family::Warpgroup, Family::Tile, Family::Flash, Family::Rows, Family::Library];
    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Family::Warpgroup => "warpgroup",
            Family::Tile => "tile",
            Family::Flash => "flash",
            Family::Rows => "rows",
            Family::Library => "library",
        }
    }
}

/// Parameters of a warpgroup matmul other than its tile. Lowering chooses those that are not given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// Slices of K that are accumulated separately (split-K).
    pub split_k: Option<usize>,
    /// Bytes of K per stage of the ring of operand tiles.
    pub depth: Option<usize>,
    /// Stages of that ring.
    pub stages: Option<usize>,
    /// Blocks per cluster.
    pub cluster: Option<usize>,
    /// Rows of tiles in a group: each column of tiles is computed for these rows before the next column.
    pub group: Option<usize>,
    /// Tiles that a block has in flight: 1, which its consumers share, or 2, one per consumer (ping-pong).
    pub tiles: Option<usize>,
}
impl Parameters {
    /// Names and values, in the order of the text form.
    fn fields(&mut self) -> [(&'static str, &mut Option<usize>); 6] {
        let Parameters { split_k, depth, stages, cluster, group, tiles } = self;
        [
            ("split-k", split_k),
            ("depth", depth),
            ("stages", stages),
            ("cluster", cluster),
            ("group", group),
            ("tiles", tiles),
        ]
    }
}

/// A template, as `warpgroup`, `tile 64x128`, `warpgroup 64x256 split-k 3 stages 5`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Template {
    /// The kind of program, or the library.
    pub family: Family,
    /// Rows and columns of a tile of the result; `None` leaves the choice to lowering.
    pub tile: Option<[usize; 2]>,
    /// Further parameters, of [`Family::Warpgroup`] only.
    #[serde(default)]
    pub schedule: Parameters,
}
impl Template {
    /// The template without its schedule.
    pub fn bare(self) -> Template {
        Template { schedule: Parameters::default(), ..self }
    }
    /// Does `other`, the template of a lowered program, satisfy this one?
    pub fn fits(self, other: Template) -> bool {
        // Parameters that a program does not show agree with any value.
        let agree = |a: Option<usize>, b: Option<usize>| a.is_none() || b.is_none() || a == b;
        let (a, b) = (self.schedule, other.schedule);
        let same = agree(a.depth, b.depth)
            && agree(a.stages, b.stages)
            && agree(a.cluster, b.cluster)
            && agree(a.tiles, b.tiles);
        self.family == other.family && (self.tile.is_none() || self.tile == other.tile) && same
    }
}
impl From<Family> for Template {
    fn from(family: Family) -> Template {
        Template { family, tile: None, schedule: Parameters::default() }
    }
}
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family.name())?;
        self.tile.map_or(Ok(()), |[m, n]| write!(f, " {m}x{n}"))?;
        let mut schedule = self.schedule;
        schedule.fields().into_iter().try_for_each(|(name, n)| n.map_or(Ok(()), |n| write!(f, " {name} {n}")))
    }
}
impl FromStr for Template {
    type Err = String;
    fn from_str(text: &str) -> Result<Template, String> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let family = Family::ALL.into_iter().find(|f| f.name() == name).ok_or_else(|| {
            let all: Vec<&str> = Family::ALL.map(Family::name).to_vec();
            format!("there is no template `{name}`; templates are {}", all.join(", "))
        })?;
        let mut template = Template::from(family);
        let tiled = matches!(family, Family::Warpgroup | Family::Tile);
        let mut word = words.next();
        if let Some(size) = word.filter(|w| w.starts_with(|c: char| c.is_ascii_digit())) {
            template.tile = Some(tile(size).filter(|_| tiled).ok_or_else(|| match tiled {
                true => {
                    format!("`{size}` is not a tile; write rows and columns as 64x128, powers of two from 16 to 256")
                }
                false => format!("the template `{name}` takes no tile, but `{size}` is given"),
            })?);
            word = words.next();
        }
        while let Some(key) = word {
            let mut fields = template.schedule.fields();
            let field = fields.iter_mut().find(|f| f.0 == key && family == Family::Warpgroup && f.1.is_none());
            let Some((_, field)) = field else { return Err(format!("unexpected `{key}` in the template `{text}`")) };
            let number = words.next().and_then(|n| n.parse().ok()).filter(|n| (1..=1024).contains(n));
            **field = Some(number.ok_or_else(|| {
                format!("`{key}` in the template `{text}` is not followed by a number from 1 to 1024")
            })?);
            word = words.next();
        }
        Ok(template)
    }
}
fn tile(text: &str) -> Option<[usize; 2]> {
    let (m, n) = text.split_once('x')?;
    let size = |t: &str| t.parse().ok().filter(|n: &usize| n.is_power_of_two() && (16..=256).contains(n));
    Some([size(m)?, size(n)?])
}

/// How a kernel is lowered: by a template of its matmul, or by a schedule of its nest.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Choice {
    /// Of a kernel with a matmul.
    Template(Template),
    /// Of points, rows and scans.
    Schedule(crate::Schedule),
}
impl Choice {
    /// Whether a library computes the matmul.
    pub fn is_library(&self) -> bool {
        matches!(self, Choice::Template(t) if t.family == Family::Library)
    }
}
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Template(t) => t.fmt(f),
            Choice::Schedule(s) => s.fmt(f),
        }
    }
}
impl FromStr for Choice {
    type Err = String;
    /// Text that begins with the name of a template is a template.
    fn from_str(text: &str) -> Result<Choice, String> {
        let first = text.split_whitespace().next().unwrap_or_default();
        match Family::ALL.iter().any(|f| f.name() == first) {
            true => text.parse().map(Choice::Template),
            false => text.parse().map(Choice::Schedule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_read_as_they_print() {
        let cut = ["warpgroup 64x256 split-k 3 depth 128 stages 5 cluster 2 group 8 tiles 2", "warpgroup stages 4"];
        for text in ["warpgroup", "warpgroup 128x256", "tile 64x16", "flash", "rows", "library"].into_iter().chain(cut)
        {
            assert_eq!(text.parse::<Template>().map(|t| t.to_string()).as_deref(), Ok(text));
        }
        for wrong in [
            "",
            "tyle",
            "tile 63x64",
            "tile 64",
            "rows 16x16",
            "tile 16x16 32",
            "tile 16x16 stages 4",
            "warpgroup stages",
            "warpgroup stages 4 stages 5",
            "warpgroup group 0",
        ] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
    }
}
