"""What users call: `kiln.compile`, `kiln.load`, `kiln.explain`, `kiln.check`, the backend of
`torch.compile`, and the compiled programs that these give.

The top of the package: it imports from all other folders, and none of them imports from it.
"""
