"""From an fx graph of ATen calls to what runs it: the program's text for the native engine, the
split around what Kiln refuses, and the calls of the engines.

Imports from `tracing` alone. Calls are checked and bound here; what is fused the engine decides.
"""
