"""Calls with bad arguments, generated from the signatures, and how they are judged.

`python -m tests.bad_calls` makes 300 of the command line and 300 of the API; tests/test_bad_calls.py a sample of them. A call
is good if it works, or ends with a sentence about the argument (an InputError; on the command line exit status 2). It is bad
if it ends in any other exception, overwrites something, takes more than ten seconds in silence, or accepts what cannot
mean anything.
"""
