"""Plans for a whole pipeline of models: the cheapest settings of all members that hold one end-to-end limit.

The methods are InferLine's (SoCC 2020: profile the members, simulate the pipeline, descend from a feasible
provisioning) and IPA's (2023: a member's variants are one more axis).
"""
