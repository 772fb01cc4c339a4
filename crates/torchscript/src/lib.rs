//! TorchScript import.
