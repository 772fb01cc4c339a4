//! The matrix unit (AMX): its tile configuration, and the product of two panels.
use std::{arch::asm, marker::PhantomData};

/// Rows of a tile, and bytes of a row.
const ROWS: u8 = 16;
const BYTES: u16 = 64;

/// The tile configuration that `ldtilecfg` reads. All eight tiles have the full size.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    const fn whole() -> Configuration {
        let mut c = Configuration { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        let mut i = 0;
        while i < 8 {
            c.bytes[i] = BYTES;
            c.rows[i] = ROWS;
            i += 1;
        }
        c
    }
}

/// The configured matrix unit of this thread. Dropping it releases the tiles, so that context switches have less state
/// to save.
pub struct Unit(PhantomData<*const ()>);

impl Unit {
    /// # Safety
    /// The level is [`kiln_cpu::Level::Amx`].
    pub unsafe fn ready() -> Unit {
        static WHOLE: Configuration = Configuration::whole();
        // SAFETY: this function's contract.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, readonly)) };
        Unit(PhantomData)
    }

    /// Stores the product of two panels in 32 × 32 accumulators, or adds it to them. Their rows are `pitch` elements
    /// apart.
    ///
    /// # Safety
    /// The panels hold `steps > 0` steps of two tiles each, and the accumulators exist.
    pub unsafe fn multiply(&self, steps: usize, [a, b]: [*const u16; 2], sums: *mut f32, pitch: usize, add: bool) {
        // SAFETY: this function's contract.
        unsafe {
            asm!(
                "test {add}, {add}",
                "jz 3f",
                "tileloadd tmm0, [{upper} + {pitch}*1]",
                "tileloadd tmm1, [{upper} + {pitch}*1 + 64]",
                "tileloadd tmm2, [{lower} + {pitch}*1]",
                "tileloadd tmm3, [{lower} + {pitch}*1 + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{upper} + {pitch}*1], tmm0",
                "tilestored [{upper} + {pitch}*1 + 64], tmm1",
                "tilestored [{lower} + {pitch}*1], tmm2",
                "tilestored [{lower} + {pitch}*1 + 64], tmm3",
                upper = in(reg) sums,
                lower = in(reg) sums.add(16 * pitch),
                pitch = in(reg) pitch * size_of::<f32>(),
                row = in(reg) usize::from(BYTES),
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                steps = inout(reg) steps => _,
                add = in(reg) usize::from(add),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: the results have been stored; nothing reads the tiles any more.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
