"""From a user's module or function to an fx graph of ATen calls: recorded in one run (`trace`), by
torch.export (`export`), or by AOT autograd from a graph of dynamo (`aot`).

A recorded run is on tensors that have types and no elements, under a mode that records operators
below autograd: there composite operators arrive whole, and vmap and autocast have done their part.
It refuses what it is not sure of, and torch.export follows. Torch's tracing costs ten times as much
(fake tensors, functionalisation, guards, a second pass), and its Python functions for shapes import
sympy and dynamo, most of the time of a second process; so frequent operators have rules of their
own (`shapes`), which tests compare with torch's.

The bottom of the package: it imports from no other folder. Nothing here knows of programs, engines
or fusion.
"""
