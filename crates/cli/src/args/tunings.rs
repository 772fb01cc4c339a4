//! The grammar of `kiln tunings`.
use clap::Subcommand;
use std::path::PathBuf;

/// What is done with times of kernels written by hand.
#[derive(Subcommand, Debug)]
pub enum TuningsCommand {
    /// Show the kernels, and for each combination of arguments the configuration that runs and the others.
    List {
        /// Only kernels of this name.
        #[arg(long, value_name = "NAME")]
        kernel: Option<String>,
        /// Also write all of it to this file, as a store.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Add all times to a store of measurements, which `kiln tune` may have written; it need not exist.
    Export {
        /// The store.
        file: PathBuf,
    },
    /// Take the times of a store.
    Import {
        /// The store.
        file: PathBuf,
    },
    /// Let a configuration run, whatever was measured.
    Pin {
        /// The kernel's name.
        kernel: String,
        /// The configuration, as `list` shows it.
        configuration: String,
        /// Only for these arguments, as `list` shows them.
        #[arg(long, value_name = "TEXT")]
        arguments: Option<String>,
    },
    /// Let the fastest configuration run again.
    Unpin {
        /// The kernel's name.
        kernel: String,
    },
}
