//! Finds libtorch and the plugin at run time.
