//! Runs a program with values of the launch three ways: by the interpreter, as host code, and as PTX by the interpreter
//! of PTX.
use super::{decode_all, near};
use kiln_block::*;
use kiln_codegen::{CodegenError, host, nvptx};
use kiln_interp::{block as interp, ptx};
use kiln_machine::Arch;

/// The grid, and for each parameter the bytes of its buffer, or of its value.
#[derive(Clone)]
pub struct Launch {
    pub grid: [usize; 3],
    pub arguments: Vec<(Elem, Vec<u8>)>,
}

impl Launch {
    pub fn new(grid: [usize; 3]) -> Launch {
        Launch { grid, arguments: vec![] }
    }
    pub fn buffer(mut self, elem: Elem, bytes: Vec<u8>) -> Launch {
        self.arguments.push((elem, bytes));
        self
    }
    pub fn scalar(self, elem: Elem, value: f64) -> Launch {
        let bytes = interp::Buffer::scalar(elem, value).bytes;
        self.buffer(elem, bytes)
    }
    fn bytes(&self) -> Vec<Vec<u8>> {
        self.arguments.iter().map(|a| a.1.clone()).collect()
    }
    pub fn interpreted(&self, k: &BlockProgram) -> Result<Vec<Vec<u8>>, interp::InterpError> {
        let one = |(e, b): &(Elem, Vec<u8>)| interp::Buffer::new(*e, &[b.len() / e.bytes()], b.clone());
        let mut buffers: Vec<interp::Buffer> = self.arguments.iter().map(one).collect();
        interp::run_grid(k, self.grid, &mut buffers)?;
        Ok(buffers.into_iter().map(|b| b.bytes).collect())
    }
    /// In two ranges of instances, as threads would.
    pub fn on_host(&self, k: &BlockProgram) -> Vec<Vec<u8>> {
        let about = || format!("{}\n{}", text::print(k), host::llvm_text(std::slice::from_ref(k)).unwrap_or_default());
        let module = host::compile(std::slice::from_ref(k)).unwrap_or_else(|e| panic!("{e}\n{}", about()));
        let mut buffers = self.bytes();
        let sizes = self.grid.map(|n| n as u64);
        let mut args: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr()).collect();
        args.push(sizes.as_ptr().cast_mut().cast());
        let (f, n) = (module.function(0).unwrap(), sizes.iter().product::<u64>());
        // SAFETY: the interpreter has run the program on buffers of these sizes.
        unsafe {
            f(args.as_ptr(), 0, n / 2);
            f(args.as_ptr(), n / 2, n);
        }
        buffers
    }
    /// `None` if there is no code for the target.
    pub fn by_ptx(&self, k: &BlockProgram, arch: Arch) -> Option<Vec<Vec<u8>>> {
        let compiled = match nvptx::compile(k, arch.machine()) {
            Err(CodegenError::Unsupported { .. }) => return None,
            other => other.unwrap_or_else(|e| panic!("{e}\n{}", text::print(k))),
        };
        let grid = compiled.grid.constant().unwrap_or(self.grid);
        let launch = ptx::Launch { grid, threads: compiled.threads, shared: compiled.shared };
        let mut buffers = self.bytes();
        ptx::run(&compiled.text, launch, &mut buffers)
            .unwrap_or_else(|e| panic!("{e}\n{}\n{}", text::print(k), compiled.text));
        Some(buffers)
    }
    /// Runs it all three ways, to the bit; floats may differ in the bits of NaN. False if there is no PTX.
    pub fn agrees(&self, k: &BlockProgram, arch: Arch, about: &str) -> bool {
        verify::verify(k).unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(k)));
        let back = text::parse(&text::print(k)).unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(k)));
        assert_eq!(back, k.compacted(), "{about}: text form");
        let want = self.interpreted(k).unwrap_or_else(|e| panic!("{about}: {e}\n{}", text::print(k)));
        self.compare(k, &self.on_host(k), &want, &format!("{about}, host"));
        let Some(found) = self.by_ptx(k, arch) else { return false };
        self.compare(k, &found, &want, &format!("{about}, {arch}"));
        true
    }
    fn compare(&self, k: &BlockProgram, got: &[Vec<u8>], want: &[Vec<u8>], about: &str) {
        for (i, ((got, want), (e, _))) in got.iter().zip(want).zip(&self.arguments).enumerate() {
            let (got, want) = (decode_all(*e, got), decode_all(*e, want));
            for (j, (g, w)) in got.iter().zip(&want).enumerate() {
                let name = &k.params[i].name;
                assert!(
                    near(*e, *g, *w, 0.0),
                    "{about}: element {j} of {name} is {g:?}, expected {w:?}\n{}",
                    text::print(k)
                );
            }
        }
    }
}
