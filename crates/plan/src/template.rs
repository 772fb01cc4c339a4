//! The way a kernel's matmul, convolution or attention is lowered, where a constraint asks for one.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Asynchronous matmuls of warpgroups, fed by tensor maps.
    Warpgroup,
    /// A tile of the result an instance, operands through registers.
    Tile,
    /// Attention with the softmax carried along.
    Flash,
    /// Each element a sum along a row.
    Rows,
    /// A library: the packed matmuls of the host, on a GPU cuBLASLt.
    Library,
}
impl Family {
    pub const ALL: [Family; 5] = [Family::Warpgroup, Family::Tile, Family::Flash, Family::Rows, Family::Library];
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

/// How a matmul of warpgroups is cut beyond its tile. What is not given, lowering chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    /// Parts of K that are summed apart.
    pub split_k: Option<usize>,
    /// Bytes of K in a stage of the ring of operand tiles.
    pub depth: Option<usize>,
    /// Stages of that ring.
    pub stages: Option<usize>,
    /// Blocks of a cluster.
    pub cluster: Option<usize>,
    /// Rows of tiles that are walked before the next column of tiles.
    pub group: Option<usize>,
    /// Tiles that a block works on at once: 1, which its consumers share, or 2, one a consumer (ping-pong).
    pub tiles: Option<usize>,
}
impl Schedule {
    /// Names and values, in the order of the text.
    fn fields(&mut self) -> [(&'static str, &mut Option<usize>); 6] {
        let Schedule { split_k, depth, stages, cluster, group, tiles } = self;
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

/// As `warpgroup`, `tile 64x128`, `warpgroup 64x256 split-k 3 stages 5`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Template {
    pub family: Family,
    /// Rows and columns of a tile.
    pub tile: Option<[usize; 2]>,
    #[serde(default)]
    pub schedule: Schedule,
}
impl Template {
    /// Without its schedule.
    pub fn bare(self) -> Template {
        Template { schedule: Schedule::default(), ..self }
    }
    /// Is `other`, as its program shows it, one of those that this stands for?
    pub fn fits(self, other: Template) -> bool {
        // What the program does not show cannot disagree.
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
        Template { family, tile: None, schedule: Schedule::default() }
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
            format!("there is no template `{name}`; there are {}", all.join(", "))
        })?;
        let mut template = Template::from(family);
        let tiled = matches!(family, Family::Warpgroup | Family::Tile);
        let mut word = words.next();
        if let Some(size) = word.filter(|w| w.starts_with(|c: char| c.is_ascii_digit())) {
            template.tile = Some(tile(size).filter(|_| tiled).ok_or_else(|| match tiled {
                true => {
                    format!("`{size}` is not a tile; write rows and columns as 64x128, powers of two from 16 to 256")
                }
                false => format!("the template `{name}` has no tile, and `{size}` follows it"),
            })?);
            word = words.next();
        }
        while let Some(key) = word {
            let mut fields = template.schedule.fields();
            let field = fields.iter_mut().find(|f| f.0 == key && family == Family::Warpgroup && f.1.is_none());
            let Some((_, field)) = field else { return Err(format!("`{key}` follows the template `{text}`")) };
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
