//! A kernel, or a part of one, that is being lowered: its body, the machine, and where the schedules of its nests are
//! from.
use crate::error::LowerError;
use crate::nest::Nest;
use crate::scalar::resolve::Body;
use kiln_plan::matmul_schedule::{MatmulSchedule, TiledMatmul};
use kiln_plan::{Hardware, Precision, Schedule};
use std::ops::Deref;

/// Schedules that fit a nest, the cheapest first. What lowers a kernel is given one of these, so that it chooses
/// nothing itself.
pub type ProposeSchedules = fn(&Nest) -> Result<Vec<Schedule>, LowerError>;

/// What is lowered.
#[derive(Clone, Copy)]
pub struct Lowering<'a> {
    pub body: Body<'a>,
    pub machine: &'a Hardware<'a>,
    /// How f32 matmuls are computed: exactly, in tf32, or as 3xTF32.
    pub precision: Precision,
    /// The schedule of a kernel that multiplies.
    pub multiply: Option<MatmulSchedule>,
    /// That of another kernel's nest.
    pub schedule: Option<&'a Schedule>,
    /// The kernel, which may be of more launches than this body is lowered to, and the whole schedule that the plan
    /// states.
    pub kernel: (&'a str, Option<&'a Schedule>),
    /// Bytes that it reads and writes once, where the planner counted them; else 0.
    pub bytes: u64,
    /// Schedules of launches that the plan states none for.
    pub propose: ProposeSchedules,
}

impl<'a> Deref for Lowering<'a> {
    type Target = Body<'a>;
    fn deref(&self) -> &Body<'a> {
        &self.body
    }
}

impl<'a> Lowering<'a> {
    /// The same with another body.
    pub fn with_body<'b>(&self, body: Body<'b>) -> Lowering<'b>
    where
        'a: 'b,
    {
        Lowering { body, ..*self }
    }
    /// The schedule that the plan states for a matmul.
    pub fn product(&self) -> Option<TiledMatmul> {
        match self.multiply {
            Some(MatmulSchedule::Matmul(p)) => Some(p),
            _ => None,
        }
    }
    /// How the plan calls a launch of this name.
    pub fn launch(&self, name: &str) -> String {
        let end = name.strip_prefix(self.kernel.0).unwrap_or(name).trim_start_matches('_');
        if end.is_empty() { "main".into() } else { end.into() }
    }
    /// The schedule that the plan states for a nest.
    pub fn stated(&self, nest: &Nest) -> Option<Stated> {
        let name = self.launch(nest.name);
        let launch = self.kernel.1.and_then(|all| all.launches().find(|l| l.0 == name));
        let main = || self.schedule.filter(|_| !nest.is_auxiliary).map(|schedule| Stated::Main(schedule.main()));
        launch.map(|l| Stated::Launch(l.1.clone())).or_else(main)
    }
}

/// A schedule that the plan states for a nest.
pub enum Stated {
    /// That of the kernel's one nest.
    Main(Schedule),
    /// That of a launch, by its name.
    Launch(Schedule),
}
