//! Software prefetch.

/// Prefetches the cache line at an address into all levels. The address need not be mapped.
#[inline(always)]
pub fn prefetch<T>(_p: *const T) {
    // SAFETY: a hint; any address will do.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_p.cast())
    }
}
