//! Regions of tensors: the positions that are wanted along each axis, all or a few. A region is their product.
//!
//! Parts of tensors and values are dense and row-major, with the region's positions in ascending order.
use super::value::{Data, Value, on_any};
use kiln_graph::{Tensor, Type};
use std::sync::Arc;

/// The positions that are wanted along one axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Positions {
    /// Size of the axis.
    size: usize,
    /// Ascending, each once, fewer than `size`; `None`: all.
    at: Option<Arc<[usize]>>,
}

/// One [`Positions`] for each axis.
pub type Region = Vec<Positions>;

impl Positions {
    /// All positions of an axis.
    pub fn all(size: usize) -> Positions {
        Positions { size, at: None }
    }
    /// These positions of an axis of `size`, in any order; those beyond it are left out.
    pub fn of(size: usize, at: impl IntoIterator<Item = usize>) -> Positions {
        let mut at: Vec<usize> = at.into_iter().filter(|p| *p < size).collect();
        at.sort_unstable();
        at.dedup();
        Positions { size, at: (at.len() < size).then(|| at.into()) }
    }
    /// Size of the axis.
    pub fn size(&self) -> usize {
        self.size
    }
    /// Number of positions.
    pub fn count(&self) -> usize {
        self.at.as_ref().map_or(self.size, |at| at.len())
    }
    /// Whether these are all positions.
    pub fn is_whole(&self) -> bool {
        self.at.is_none()
    }
    pub(super) fn whole(&self) -> Positions {
        Positions::all(self.size)
    }
    /// In ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count()).map(|i| self.at.as_ref().map_or(i, |at| at[i]))
    }
    /// The rank of position `p` among these.
    pub(super) fn find(&self, p: usize) -> Option<usize> {
        match &self.at {
            None => (p < self.size).then_some(p),
            Some(at) => at.binary_search(&p).ok(),
        }
    }
    fn union(&self, other: &Positions) -> Positions {
        match (&self.at, &other.at) {
            (Some(a), Some(b)) if a != b => Positions::of(self.size, a.iter().chain(b.iter()).copied()),
            (Some(_), Some(_)) => self.clone(),
            _ => self.whole(),
        }
    }
    /// The ranks of `of`'s positions among these, which contain them.
    fn ranks(&self, of: &Positions) -> Result<Vec<usize>, String> {
        let find = |p| self.find(p).ok_or_else(|| format!("position {p} was not computed; please report this"));
        of.iter().map(find).collect()
    }
}

/// The region that is all of a tensor.
pub fn whole(shape: &[usize]) -> Region {
    shape.iter().map(|n| Positions::all(*n)).collect()
}

/// The shape of a region's part.
pub(super) fn shape(region: &[Positions]) -> Vec<usize> {
    region.iter().map(Positions::count).collect()
}

/// The smallest region that contains both.
pub(super) fn union(a: &[Positions], b: &[Positions]) -> Region {
    a.iter().zip(b).map(|(a, b)| a.union(b)).collect()
}

/// The elements of a tensor that lie in a region of its shape; `None` if the region is of another shape.
pub fn part(t: &Tensor, region: &[Positions]) -> Option<Tensor> {
    if !t.ty.shape.iter().copied().eq(region.iter().map(|p| p.size)) {
        return None;
    }
    if region.iter().all(Positions::is_whole) {
        return Some(t.clone());
    }
    let each = t.ty.dtype.bytes();
    let axes: Vec<Places> = region.iter().map(|p| (p.size, p.iter().collect())).collect();
    let bytes: Vec<u8> =
        offsets(&axes).into_iter().flat_map(|i| &t.bytes()[i * each..(i + 1) * each]).copied().collect();
    Tensor::from_bytes(Type::new(t.ty.dtype, shape(region)), &bytes)
}

/// The part `to` of a value that holds the part `from`, which contains it.
pub(super) fn narrowed(x: &Value, from: &[Positions], to: &[Positions]) -> Result<Value, String> {
    if from == to {
        return Ok(x.clone());
    }
    let axes = from.iter().zip(to).map(|(f, t)| Ok((f.count(), f.ranks(t)?))).collect::<Result<Vec<_>, String>>()?;
    Ok(Value { ty: Type::new(x.ty.dtype, shape(to)), data: gather(&x.data, &axes) })
}

/// Size of an axis, and the places along it that are read, in order.
type Places = (usize, Vec<usize>);

/// Row-major offsets of the product of places.
fn offsets(axes: &[Places]) -> Vec<usize> {
    let join = |at: Vec<usize>, (size, places): &Places| {
        at.iter().flat_map(|a| places.iter().map(move |p| a * size + p)).collect()
    };
    axes.iter().fold(vec![0], join)
}

fn gather(data: &Data, axes: &[Places]) -> Data {
    let at = offsets(axes);
    on_any!(data, v => at.iter().map(|i| v[*i]).collect())
}

/// Axes of a reshape's operand and of its result that hold the same elements.
struct Group {
    from: std::ops::Range<usize>,
    to: std::ops::Range<usize>,
}

/// The finest groups of two shapes with the same number of elements, which is not zero.
fn groups(from: &[usize], to: &[usize]) -> Vec<Group> {
    let (mut i, mut j, mut all) = (0, 0, vec![]);
    while i < from.len() || j < to.len() {
        let start = (i, j);
        // An axis of both, then more of whichever has fewer elements so far.
        let (mut a, mut b) = (from.get(i).copied().unwrap_or(1), to.get(j).copied().unwrap_or(1));
        (i, j) = ((i + 1).min(from.len()), (j + 1).min(to.len()));
        while a != b {
            let (product, sizes, next) = if a < b { (&mut a, from, &mut i) } else { (&mut b, to, &mut j) };
            // The numbers of elements are equal, so there is another axis.
            let Some(size) = sizes.get(*next) else { break };
            *product *= size;
            *next += 1;
        }
        all.push(Group { from: start.0..i, to: start.1..j });
    }
    all
}

/// Row-major offsets, within axes of the whole shape, of a region's elements.
fn flat(region: &[Positions]) -> Vec<usize> {
    let axes: Vec<Places> = region.iter().map(|p| (p.size, p.iter().collect())).collect();
    offsets(&axes)
}

/// Most elements of a group of a reshape's axes that are followed one by one; of more, all are wanted.
const FOLLOWED: usize = 1 << 20;

/// The region of a reshape's operand, of shape `from`, that contains the result's `region`.
pub(super) fn before_reshape(from: &[usize], region: &[Positions]) -> Region {
    let to: Vec<usize> = region.iter().map(|p| p.size).collect();
    if from.contains(&0) {
        return whole(from);
    }
    let mut all = Region::new();
    for g in groups(from, &to) {
        let (sizes, wanted) = (&from[g.from.clone()], &region[g.to.clone()]);
        let many = wanted.iter().try_fold(1usize, |n, p| n.checked_mul(p.count())).is_none_or(|n| n > FOLLOWED);
        if many || wanted.iter().all(Positions::is_whole) {
            all.extend(whole(sizes));
            continue;
        }
        let mut seen: Vec<Vec<bool>> = sizes.iter().map(|n| vec![false; *n]).collect();
        for mut offset in flat(wanted) {
            for (seen, n) in seen.iter_mut().zip(sizes).rev() {
                seen[offset % n] = true;
                offset /= n;
            }
        }
        all.extend(seen.iter().map(|s| Positions::of(s.len(), (0..s.len()).filter(|i| s[*i]))));
    }
    all
}

/// The part `region` of a reshape's result; `x` holds the operand's part `from`.
pub(super) fn reshape(x: &Value, from: &[Positions], region: &[Positions]) -> Result<Data, String> {
    if from.iter().chain(region).all(Positions::is_whole) {
        return Ok(x.data.clone());
    }
    let sizes = |r: &[Positions]| r.iter().map(|p| p.size).collect::<Vec<_>>();
    let (own, to) = (sizes(from), sizes(region));
    let place = |g: &Group| {
        let (held, wanted) = (&from[g.from.clone()], &region[g.to.clone()]);
        let one = |mut offset: usize| {
            let (mut place, mut stride) = (0, 1);
            for p in held.iter().rev() {
                place += p.find(offset % p.size)? * stride;
                stride *= p.count();
                offset /= p.size;
            }
            Some(place)
        };
        let places: Option<Vec<usize>> = flat(wanted).into_iter().map(one).collect();
        let places = places.ok_or("a reshape reads what was not computed; please report this")?;
        Ok((held.iter().map(Positions::count).product(), places))
    };
    let axes = groups(&own, &to).iter().map(place).collect::<Result<Vec<Places>, String>>()?;
    Ok(gather(&x.data, &axes))
}
