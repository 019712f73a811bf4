"""Whether what will be served is the author's model: who judges, how it is asked, and the first difference."""
