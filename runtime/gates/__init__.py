"""Judgement: the policy, its statistics, and the report that shows both."""
