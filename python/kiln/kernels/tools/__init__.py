"""Modules that ports import by Triton's names."""
