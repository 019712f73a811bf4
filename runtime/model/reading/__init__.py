"""What a fitted model says about its inputs: thresholds, categories, sentinels, words, sizes of tables.

It is read from the author's objects, so only in the sandbox. What a class of models can say, its reader knows.
"""
