"""Plans for a whole pipeline of models: the cheapest settings of all members that hold one end-to-end limit.

Anchors: InferLine (SoCC 2020; profile members, simulate the pipeline, descend from a feasible provisioning) and IPA
(2023; variants of a member are one more axis).
"""
