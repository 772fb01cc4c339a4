//! The way a kernel's product, convolution or attention is lowered, where a constraint asks for one.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Asynchronous products of warpgroups, fed by tensor maps.
    Warpgroup,
    /// A tile of the result an instance, operands through registers.
    Tile,
    /// Attention with the softmax carried along.
    Flash,
    /// Each element a sum along a row.
    Rows,
    /// The packed products of the host.
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

/// As `warpgroup`, `tile 64x128`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Template {
    pub family: Family,
    /// Rows and columns of a tile.
    pub tile: Option<[usize; 2]>,
}
impl Template {
    /// Is `other` one of those that this stands for?
    pub fn fits(self, other: Template) -> bool {
        self.family == other.family && (self.tile.is_none() || self.tile == other.tile)
    }
}
impl From<Family> for Template {
    fn from(family: Family) -> Template {
        Template { family, tile: None }
    }
}
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family.name())?;
        self.tile.map_or(Ok(()), |[m, n]| write!(f, " {m}x{n}"))
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
        let tiled = matches!(family, Family::Warpgroup | Family::Tile);
        let tile = match words.next() {
            None => None,
            Some(size) if tiled => Some(tile(size).ok_or_else(|| {
                format!("`{size}` is not a tile; write rows and columns as 64x128, powers of two from 16 to 256")
            })?),
            Some(size) => return Err(format!("the template `{name}` has no tile, and `{size}` follows it")),
        };
        match words.next() {
            None => Ok(Template { family, tile }),
            Some(more) => Err(format!("`{more}` follows the template `{text}`")),
        }
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
        for text in ["warpgroup", "warpgroup 128x256", "tile 64x16", "flash", "rows", "library"] {
            assert_eq!(text.parse::<Template>().map(|t| t.to_string()).as_deref(), Ok(text));
        }
        for wrong in ["", "tyle", "tile 63x64", "tile 64", "rows 16x16", "tile 16x16 32"] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
    }
}
