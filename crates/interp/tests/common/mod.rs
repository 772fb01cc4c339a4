//! Random numbers for generated programs, from a seed that a failing test prints.

/// A linear congruential generator (Knuth's MMIX).
pub struct Random(pub u64);
impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
