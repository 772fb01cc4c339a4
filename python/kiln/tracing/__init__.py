"""From a user's module or function to an fx graph of ATen calls: recorded in one run (`trace`), by
torch.export (`export`), or by AOT autograd from a graph of dynamo (`aot`).

The bottom of the package: it imports from no other folder. Nothing here knows of programs, engines
or fusion.
"""
