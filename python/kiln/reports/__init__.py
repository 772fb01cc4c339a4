"""What is told of compiled programs: kernels and reasons, accuracy, times, the environment.

Takes engines, pieces and results, and never compiles: `api` does that, and calls this.
"""
