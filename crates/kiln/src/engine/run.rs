//! Runs of an engine, one or many in a row, and the state that they change.
//!
//! Takes: inputs on the host, or addresses on the device. Gives: outputs. State is the engine's: it lies in memory of
//! the device, gets its first values from the program, and every binding of the program reads and writes it there.
//! Never: copies state to the host unasked.
use super::{Binding, Engine, Result as Given, lock};
use crate::{Error, program::Sizes};
use kiln_graph::{Tensor, Type};
use kiln_runtime::{Device, Feed, Param, Storage};
use std::{collections::BTreeMap, sync::Arc};

type Result<T> = std::result::Result<T, Error>;

/// What stays on the device between runs.
#[derive(Default)]
pub(super) struct Kept {
    /// By the program's parameter. What no run has needed is missing.
    values: BTreeMap<usize, Storage>,
    /// Memory of a GPU for inputs of the host.
    inputs: Vec<Storage>,
    /// Memory for outputs: all of runs over inputs of the host, of other runs those that are copied to state.
    outputs: Vec<Storage>,
    /// The stream and binding of the last run on a GPU: bindings are sessions of their own, which do not know of each
    /// other's runs.
    last: Option<(u64, Arc<Binding>)>,
}

impl Kept {
    /// State of a binding, which is made at its first use.
    fn addresses(&mut self, engine: &Engine, states: &[usize]) -> Result<Vec<u64>> {
        let address = |index: &usize| {
            if !self.values.contains_key(index) {
                let made = Storage::of(&engine.device, engine.initial(*index)?, "the program's state")?;
                self.values.insert(*index, made);
            }
            // Invariant: made above.
            Ok(self.values.get_mut(index).map_or(0, Storage::address))
        };
        states.iter().map(address).collect()
    }
    /// Waits for the last run if it was on another stream.
    fn follow(&mut self, stream: u64, binding: &Arc<Binding>) -> Result<()> {
        let last = self.last.replace((stream, binding.clone()));
        match last {
            Some((before, other)) if before != stream => Ok(other.session.check()?),
            _ => Ok(()),
        }
    }
}

/// Memory for tensors of these types: what there is, if it fits.
fn room(device: &Device, have: &mut Vec<Storage>, want: &[Type], what: &str) -> Result<Vec<u64>> {
    if !have.iter().map(Storage::ty).eq(want) {
        have.clear();
        let made = want.iter().map(|ty| Storage::new(device, ty.clone(), what));
        *have = made.collect::<std::result::Result<_, _>>()?;
    }
    Ok(have.iter_mut().map(Storage::address).collect())
}

impl Engine {
    /// Runs the program on tensors of the host, one for each tensor input, and gives its tensor outputs; compiles it if
    /// their sizes are new. State that a run changes is the engine's: the next run sees it.
    ///
    /// # Errors
    /// Those of [`Engine::bind`] and [`kiln_runtime::Session::run`], and if the program writes to its inputs.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.steps(1, inputs)
    }
    /// One step of a program that keeps state, such as a token of a language model with its caches: [`Engine::run`] by
    /// the name that it has there. The engine and not a session has the state, because bindings for several sizes
    /// change the same: a prompt is read in runs of many tokens, and steps of one token go on from there.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn step(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.steps(1, inputs)
    }
    /// Runs the program `count` times on the same inputs, and gives the outputs of the last run. Between runs nothing
    /// returns to the host: on a GPU all of them are enqueued at once. That is for programs whose state has what the
    /// next step reads, such as the token chosen.
    ///
    /// # Errors
    /// As [`Engine::run`], and if `count` is 0.
    pub fn steps(&self, count: usize, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let types: Vec<Type> = inputs.iter().map(|t| t.ty.clone()).collect();
        self.run_binding(&self.bind(&types, &[])?, count, inputs)
    }
    /// The same at the sizes of one of the engine's bindings.
    ///
    /// # Errors
    /// As [`Engine::steps`].
    pub fn run_binding(&self, binding: &Arc<Binding>, count: usize, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.may_run(binding)?;
        if count == 0 {
            return Err(Error::usage("0 steps have no outputs", "run at least one step"));
        }
        if binding.states.is_empty() {
            // Each run gives the same.
            return Ok(binding.session.run(inputs)?);
        }
        if !inputs.iter().map(|t| &t.ty).eq(&binding.inputs) {
            return Err(Error::inputs("the inputs are of other sizes than the binding", "bind these sizes"));
        }
        // Held during the run: the next one sees what this one leaves.
        let mut kept = lock(&self.state);
        let kept = &mut *kept;
        let mut from: Vec<u64> = match &self.device {
            Device::Host(_) => inputs.iter().map(|t| t.bytes().as_ptr().expose_provenance() as u64).collect(),
            Device::Cuda(_) => {
                let places = room(&self.device, &mut kept.inputs, &binding.inputs, "inputs")?;
                kept.inputs.iter_mut().zip(inputs).try_for_each(|(place, input)| place.write(input))?;
                places
            }
        };
        from.extend(kept.addresses(self, &binding.states)?);
        let executable = binding.session.executable();
        let types: Vec<Type> = executable.outputs.iter().map(|b| executable.ty(*b).clone()).collect();
        let to = room(&self.device, &mut kept.outputs, &types, "outputs")?;
        let stream = matches!(self.device, Device::Cuda(_)).then_some(0);
        kept.follow(0, binding)?;
        // SAFETY: dense tensors of the binding's types on its device, which live through the call and, as `check`
        // waits, through the runs; outputs and state are the engine's own.
        unsafe { binding.session.steps_on(count, &from, &to, &feeds(binding), stream) }?;
        binding.session.check()?;
        let results = binding.results.iter().filter(|r| matches!(r, Given::Tensor(..))).count();
        kept.outputs.iter().take(results).map(|o| o.read().map_err(Error::from)).collect()
    }
    /// The same over memory of the engine's GPU, enqueued on `stream` and not waited for. `outputs`: the tensors that a
    /// run gives. A run on another stream than the one before waits for that one.
    ///
    /// # Errors
    /// As [`kiln_runtime::Session::run_on`], and if the program writes to its inputs.
    ///
    /// # Safety
    /// As [`kiln_runtime::Session::run_on`]. State is changed when the work is done.
    pub unsafe fn run_binding_on(
        &self,
        binding: &Arc<Binding>,
        inputs: &[u64],
        outputs: &[u64],
        stream: u64,
    ) -> Result<()> {
        self.may_run(binding)?;
        let mut kept = lock(&self.state);
        let mut from = inputs.to_vec();
        from.extend(kept.addresses(self, &binding.states)?);
        let executable = binding.session.executable();
        // What is copied to state follows the outputs of the caller.
        let rest: Vec<Type> =
            executable.outputs.iter().skip(outputs.len()).map(|b| executable.ty(*b).clone()).collect();
        let mut to = outputs.to_vec();
        to.extend(room(&self.device, &mut kept.outputs, &rest, "outputs")?);
        kept.follow(stream, binding)?;
        // SAFETY: this function's contract; state and the rest are the engine's own.
        Ok(unsafe { binding.session.steps_on(1, &from, &to, &feeds(binding), Some(stream)) }?)
    }
    /// Refuses programs that change what the caller lends.
    fn may_run(&self, binding: &Binding) -> Result<()> {
        let Some(w) = binding.writes.iter().find(|w| w.input < binding.inputs.len()) else { return Ok(()) };
        let name = self.tensor_positions().get(w.input).map_or("", |at| self.program.inputs()[*at].name.as_str());
        let model = self.program.name();
        let what = format!("{model} writes to its input `{name}`, which a run on borrowed tensors cannot do");
        Err(Error::usage(what, "let the model return the new value"))
    }

    /// The names of the program's state: what its runs change and the next run reads.
    ///
    /// # Errors
    /// If the program cannot be specialised to the sizes of its export.
    pub fn state_names(&self) -> Result<Vec<String>> {
        let name = |index: &usize| self.program.param_names().nth(*index).map(str::to_string);
        Ok(self.state_indices()?.iter().filter_map(name).collect())
    }
    /// Dtype and shape of a state.
    ///
    /// # Errors
    /// If there is no such state.
    pub fn state_type(&self, name: &str) -> Result<Type> {
        Ok(self.params()[self.state_index(name)?].ty().clone())
    }
    /// A copy of a state by its name, as the last run of this engine has left it.
    ///
    /// # Errors
    /// If there is no such state, or the device fails.
    pub fn state(&self, name: &str) -> Result<Tensor> {
        let index = self.state_index(name)?;
        match lock(&self.state).values.get(&index) {
            Some(value) => Ok(value.read()?),
            None => Ok(self.initial(index)?.clone()),
        }
    }
    /// Sets a state, which the next run reads.
    ///
    /// # Errors
    /// If there is no such state, the value is of another type, or the device fails.
    pub fn set_state(&self, name: &str, value: &Tensor) -> Result<()> {
        let index = self.state_index(name)?;
        let want = self.initial(index)?;
        if value.ty != want.ty {
            let what = format!("the state `{name}` is {}, and the value is {}", want.ty, value.ty);
            return Err(Error::inputs(what, "give values of the state's dtype and shape"));
        }
        let kept = &mut lock(&self.state).values;
        match kept.get_mut(&index) {
            Some(state) => state.write(value)?,
            None => {
                kept.insert(index, Storage::of(&self.device, value, "the program's state")?);
            }
        }
        Ok(())
    }
    /// Gives state the values that the program came with. Runs that are in progress come before.
    ///
    /// # Errors
    /// If the device fails.
    pub fn reset(&self) -> Result<()> {
        // The memory stays: recorded launches refer to it.
        let mut kept = lock(&self.state);
        kept.values.iter_mut().try_for_each(|(index, state)| Ok(state.write(self.initial(*index)?)?))
    }

    fn initial(&self, index: usize) -> Result<&Tensor> {
        match &self.params()[index] {
            Param::Host(t) => Ok(t),
            Param::Device(_) => Err(Error::usage(
                "the program's state is in memory of a GPU",
                "give it on the CPU: the engine copies it",
            )),
        }
    }
    fn state_index(&self, name: &str) -> Result<usize> {
        let all = self.state_indices()?;
        let found = all.iter().find(|i| self.program.param_names().nth(**i) == Some(name));
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = all.iter().filter_map(|i| self.program.param_names().nth(*i)).collect();
            let help =
                if names.is_empty() { "it keeps none".into() } else { format!("its states are {}", names.join(", ")) };
            Error::usage(format!("{} has no state `{name}`", self.program.name()), help)
        })
    }
    /// The program's parameters that are state, whichever sizes it has.
    fn state_indices(&self) -> Result<&[usize]> {
        if let Some(known) = self.names.get() {
            return Ok(known);
        }
        let mut found = self.program.specialise(&self.program.sizes(&Sizes::new(), &[])?)?.states;
        found.sort_unstable();
        Ok(self.names.get_or_init(|| found))
    }
}

/// State that is not written in place.
fn feeds(binding: &Binding) -> Vec<Feed> {
    binding.copies.iter().map(|w| (w.input, w.output)).collect()
}
