"""Judgement: policy, its statistics, and the report that shows both."""
