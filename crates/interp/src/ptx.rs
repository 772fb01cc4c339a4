//! Interpreter of PTX: runs the threads of a kernel, block after block, over plain bytes.
//!
//! Takes: a module with one entry, how it is launched, and the bytes behind each parameter (of a scalar: its value).
//! Gives: the bytes as the kernel leaves them, or its first error: an access out of bounds or unaligned, threads that
//! wait for ever, an instruction that it does not know.
//!
//! The threads of a block advance together: of all positions in the program, those at the least one execute it, so that
//! threads which took different branches meet again where these join. A thread at a barrier waits for the others, at an
//! exchange for its warp. Approximate functions are computed in f64 and rounded, so results are compared with a
//! tolerance. Blocks run one after the other, so one that waits for a later one does not end. Not covered: tensor cores
//! of warpgroups, tensor maps, clusters.
mod number;
mod parse;
mod threads;

/// How a kernel is launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub grid: [usize; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

/// Why a kernel could not be run to its end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PtxError {
    #[error("`{line}` is not understood: {what}")]
    Unknown { line: String, what: String },
    #[error("block {block:?}, thread {thread}, `{line}`: {what}")]
    Failed { block: [usize; 3], thread: usize, line: String, what: String },
    #[error("block {block:?} does not end")]
    Endless { block: [usize; 3] },
}

/// Bytes that may be read behind the end of a buffer: those of its last vector.
const VECTOR: usize = 16;

/// Runs all blocks, axis 0 fastest. `buffers`: one per parameter, in order; the kernel's writes land in them.
pub fn run(text: &str, launch: Launch, buffers: &mut [Vec<u8>]) -> Result<(), PtxError> {
    let program = parse::program(text)?;
    let mut memory = threads::Memory::of(buffers);
    let [nx, ny, nz] = launch.grid;
    for block in (0..nz).flat_map(|z| (0..ny).flat_map(move |y| (0..nx).map(move |x| [x, y, z]))) {
        threads::run_block(&program, launch, block, &mut memory)?;
    }
    memory.into(buffers);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.1\n.target sm_90a\n.address_size 64\n.extern .shared .align 128 .b8 _shared[];\n";

    fn f32s(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// A load of fewer bits than its register has fills that by the sign of its type.
    #[test]
    fn loads_fill_registers_by_sign() {
        let text = format!(
            "{HEAD}.visible .entry k(\n\t.param .u64 .ptr .global .align 16 k_param_0,\n\t.param .u32 k_param_1\n)\n\
             .reqntid 1\n{{
	ld.param.b64 	%rd1, [k_param_0];
	ld.param.s32 	%rd2, [k_param_1];
	ld.global.s32 	%rd3, [%rd1];
	ld.global.u32 	%rd4, [%rd1];
	add.s64 	%rd5, %rd2, %rd3;
	st.global.b64 	[%rd1], %rd5;
	st.global.b64 	[%rd1 + 8], %rd4;
	ret;
}}"
        );
        let launch = Launch { grid: [1; 3], threads: 1, shared: 0 };
        let mut buffers = [[0xfe, 0xff, 0xff, 0xff].repeat(4), vec![0xfd, 0xff, 0xff, 0xff]];
        run(&text, launch, &mut buffers).unwrap();
        let words: Vec<i64> = buffers[0].as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
        assert_eq!(words, [-5, 0xffff_fffe]);
    }

    /// Threads that branch apart join again, exchange numbers in their warp, and wait for each other.
    #[test]
    fn threads_meet_again() {
        let text = format!(
            "{HEAD}.visible .entry k(\n\t.param .u64 .ptr .global .align 16 k_param_0\n)\n.reqntid 64\n{{
	.reg .pred 	%p<3>;
	ld.param.b64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	and.b32 	%r2, %r1, 1;
	setp.eq.b32 	%p1, %r2, 0;
	mov.b32 	%f1, 0f3F800000;
	@%p1 bra 	$L__BB0_2;
	// odd threads
	mov.b32 	%f1, 0f40000000;
$L__BB0_2:
	shfl.sync.bfly.b32 	%f2, %f1, 1, 31, -1;
	add.rn.f32 	%f3, %f1, %f2;
	shl.b32 	%r3, %r1, 2;
	mov.b32 	%r4, _shared;
	add.s32 	%r5, %r4, %r3;
	st.shared.b32 	[%r5], %f3;
	bar.sync 	0;
	xor.b32 	%r6, %r3, 252;
	ld.shared.b32 	%f4, [%r6];
	cvt.rn.f32.u32 	%f5, %r1;
	fma.rn.f32 	%f6, %f4, %f5, %f1;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.b32 	[%rd3], %f6;
	ret;
}}"
        );
        let mut buffers = vec![vec![0u8; 256]];
        let launch = Launch { grid: [1, 1, 1], threads: 64, shared: 256 };
        run(&text, launch, &mut buffers).unwrap();
        let want: Vec<f32> = (0..64).map(|t| 3.0 * t as f32 + if t % 2 == 0 { 1.0 } else { 2.0 }).collect();
        assert_eq!(f32s(&buffers[0]), want);
        // The last thread writes behind the end.
        buffers[0].truncate(252);
        let e = run(&text, launch, &mut buffers).unwrap_err().to_string();
        assert!(e.contains("thread 63") && e.contains("st.global.b32") && e.contains("4 bytes behind"), "{e}");
    }

    #[test]
    fn what_is_not_known_has_a_name() {
        let of = |line: &str| {
            let text = format!("{HEAD}.visible .entry k()\n{{\n{line};\nret;\n}}");
            run(&text, Launch { grid: [1, 1, 1], threads: 32, shared: 0 }, &mut []).unwrap_err().to_string()
        };
        assert!(of("wgmma.fence.sync.aligned").contains("wgmma.fence.sync.aligned"));
        assert!(of("frob.b32 %r1, %r2").contains("frob.b32"));
        assert!(of("$L: bra $L").contains("does not end"));
        assert!(of("bra $M").contains("no label"));
    }
}
