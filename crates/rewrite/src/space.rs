//! Iteration spaces: which loop ranges index which axes of a value.
//!
//! An *atom* is a loop range. Going backward from a kernel's result, every value gets an access map: for each of its
//! axes, the atoms that index it. Views only rewrite maps; a reshape splits an atom where it must. An index that cannot
//! be expressed like this is `computed`: the value may be read element by element, but not as rows or tiles.

pub type Atom = u32;

/// How one axis is indexed: index = `from` + `step` · (the linear index over the atoms, outermost first).
#[derive(Clone, PartialEq, Debug)]
pub struct AxisMap {
    pub atoms: Vec<Atom>,
    pub from: i64,
    pub step: i64,
    /// The index is some function of the atoms, or of data.
    pub computed: bool,
}
impl Default for AxisMap {
    fn default() -> AxisMap {
        AxisMap { atoms: vec![], from: 0, step: 1, computed: false }
    }
}
impl AxisMap {
    pub fn over(atoms: Vec<Atom>) -> AxisMap {
        AxisMap { atoms, ..AxisMap::default() }
    }
    pub fn computed(atoms: Vec<Atom>) -> AxisMap {
        AxisMap { atoms, computed: true, ..AxisMap::default() }
    }
}

/// The access map of a value: one entry per axis.
pub type Map = Vec<AxisMap>;

/// The atoms of a kernel.
#[derive(Default)]
pub struct Space {
    size: Vec<i64>,
    /// The two atoms, outer and inner, that each split atom was split into.
    parts: Vec<Option<[Atom; 2]>>,
}

impl Space {
    pub fn atom(&mut self, n: i64) -> Atom {
        self.size.push(n);
        self.parts.push(None);
        self.size.len() as Atom - 1
    }
    /// The map of an axis of `n` elements over a new atom.
    pub fn axis(&mut self, n: usize) -> AxisMap {
        if n == 1 { AxisMap::default() } else { AxisMap::over(vec![self.atom(n as i64)]) }
    }
    /// The atoms with split ones replaced by their parts.
    pub fn now(&self, atoms: &[Atom]) -> Vec<Atom> {
        let mut out = Vec::with_capacity(atoms.len());
        for &a in atoms {
            match self.parts[a as usize] {
                Some(p) => out.extend(self.now(&p)),
                None => out.push(a),
            }
        }
        out
    }
    pub fn refresh(&self, m: &mut Map) {
        for w in m {
            if w.atoms.iter().any(|&a| self.parts[a as usize].is_some()) {
                w.atoms = self.now(&w.atoms);
            }
        }
    }
    pub fn extent(&self, atoms: &[Atom]) -> i64 {
        atoms.iter().map(|&a| self.size[a as usize]).product()
    }
    /// Is every element of the axis visited once, in order?
    pub fn full(&self, w: &AxisMap, size: usize) -> bool {
        !w.computed && w.from == 0 && w.step == 1 && self.extent(&w.atoms) == size as i64
    }
    /// Is every element of a value of this shape visited?
    pub fn whole(&self, m: &[AxisMap], shape: &[usize]) -> bool {
        m.iter().zip(shape).all(|(w, &s)| self.full(w, s))
    }
    /// All atoms of a map, in the order of its axes, outermost first.
    pub fn flat(&self, m: &[AxisMap]) -> Vec<Atom> {
        m.iter().flat_map(|w| self.now(&w.atoms)).collect()
    }
    /// Distributes atoms over axes of the given sizes, splitting an atom where a size ends inside it. `None` if sizes
    /// do not divide.
    pub fn deal(&mut self, atoms: &[Atom], sizes: &[usize]) -> Option<Vec<AxisMap>> {
        let mut rest: Vec<Atom> = self.now(atoms);
        rest.reverse();
        let mut out = vec![];
        for &n in sizes {
            let (n, mut have, mut taken) = (n as i64, 1, vec![]);
            while have < n {
                if n % have != 0 {
                    return None;
                }
                let a = rest.pop()?;
                let (s, need) = (self.size[a as usize], n / have);
                if s <= need {
                    have *= s;
                    taken.push(a);
                    continue;
                }
                if s % need != 0 {
                    return None;
                }
                let p = [self.atom(need), self.atom(s / need)];
                self.parts[a as usize] = Some(p);
                rest.extend([p[1], p[0]]);
            }
            if have != n {
                return None;
            }
            out.push(AxisMap::over(taken));
        }
        rest.is_empty().then_some(out)
    }
    /// The map of a reshape's operand (of shape `to`) from the map of its result (of shape `from`): axes are matched in
    /// groups of equal product. `None` if the operand's axes are not indexed by whole atoms.
    pub fn reshape(&mut self, m: &[AxisMap], from: &[usize], to: &[usize]) -> Option<Map> {
        let wide = |s: &[usize]| -> Vec<usize> { (0..s.len()).filter(|&i| s[i] != 1).collect() };
        let (f, t) = (wide(from), wide(to));
        let (mut out, mut i, mut j) = (vec![AxisMap::default(); to.len()], 0, 0);
        while i < f.len() {
            let (i0, j0, mut p, mut q) = (i, j, from[f[i]], to[*t.get(j)?]);
            (i, j) = (i + 1, j + 1);
            while p != q {
                if p < q {
                    p *= from[*f.get(i)?];
                    i += 1;
                } else {
                    q *= to[*t.get(j)?];
                    j += 1;
                }
            }
            let group = &f[i0..i];
            if let ([a], 1) = (group, j - j0) {
                out[t[j0]] = m[*a].clone();
                continue;
            }
            // Inner axes may have a fixed index, as for one element of each pair.
            let fixed = group[1..].iter().rev().take_while(|&&a| m[a].atoms.is_empty() && !m[a].computed).count();
            let (group, ends) = group.split_at(group.len() - fixed);
            if group[1..].iter().any(|&a| !self.full(&m[a], from[a])) {
                return None;
            }
            let (place, every) =
                ends.iter().fold((0, 1), |(at, n), &a| (at * from[a] as i64 + m[a].from, n * from[a] as i64));
            let (first, inner) = (&m[group[0]], p / from[group[0]] / every as usize);
            let flat: Vec<Atom> = group.iter().flat_map(|&a| m[a].atoms.iter().copied()).collect();
            if j - j0 == 1 {
                if first.step != 1 && inner > 1 {
                    return None;
                }
                let from = first.from.checked_mul(p as i64 / from[group[0]] as i64)?.checked_add(place)?;
                let step = first.step.checked_mul(every)?;
                out[t[j0]] = AxisMap { atoms: flat, from, step, ..first.clone() };
                continue;
            }
            if every > 1 || !self.full(first, from[group[0]]) {
                return None;
            }
            let sizes: Vec<usize> = t[j0..j].iter().map(|&k| to[k]).collect();
            for (w, &k) in self.deal(&flat, &sizes)?.into_iter().zip(&t[j0..j]) {
                out[k] = w;
            }
        }
        Some(out)
    }
    /// A map of `computed` axes, which only records the atoms involved.
    pub fn unknown(&self, m: &[AxisMap], rank: usize) -> Map {
        let mut out = vec![AxisMap::computed(vec![]); rank];
        if let Some(first) = out.first_mut() {
            first.atoms = self.flat(m);
        }
        out
    }
    /// Do these atoms with their strides, outermost first, form one range of constant stride in memory?
    pub fn strided(&self, group: &[(Atom, i64)]) -> bool {
        group.windows(2).all(|p| p[0].1 == p[1].1 * self.size[p[1].0 as usize])
    }
    /// Stride in memory of every atom that indexes a dense row-major buffer of `shape`; `None` if an index is computed.
    pub fn strides(&self, m: &[AxisMap], shape: &[usize]) -> Option<Vec<(Atom, i64)>> {
        let (mut stride, mut out) = (1i64, vec![]);
        for (w, &s) in m.iter().zip(shape).rev() {
            if w.computed {
                return None;
            }
            let mut at = stride * w.step;
            for a in self.now(&w.atoms).into_iter().rev() {
                out.push((a, at));
                at *= self.size[a as usize];
            }
            stride *= s as i64;
        }
        Some(out)
    }
}

/// Map of an operand of shape `s` that broadcasts (as in NumPy) to a result of rank `rank` with map `m`.
pub fn align(s: &[usize], rank: usize, m: &[AxisMap]) -> Map {
    let missing = rank - s.len().min(rank);
    s.iter().enumerate().map(|(i, &n)| if n == 1 { AxisMap::default() } else { m[missing + i].clone() }).collect()
}
